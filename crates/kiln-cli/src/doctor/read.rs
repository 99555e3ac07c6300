//! Reads the texts in which programs say that memory is missing.

use bytesize::ByteSize;
use kiln_recovery::{Failure, Kind};

use super::finding::Finding;

/// What a text says about missing memory.
pub(super) fn findings(text: &str) -> Vec<Finding> {
    let known = [torch_on_a_gpu(text), torch_on_the_cpu(text), xla(text), loader(text), killed(text)];
    let known: Vec<Finding> = known.into_iter().flatten().collect();
    match known.is_empty() {
        false => known,
        true => failure(text).into_iter().collect(),
    }
}

/// `torch.OutOfMemoryError`. The allocator's numbers say whether tensors, its reserve or other processes fill the GPU.
fn torch_on_a_gpu(text: &str) -> Option<Finding> {
    let text = &text[text.rfind("CUDA out of memory. ").or_else(|| text.rfind("HIP out of memory. "))?..];
    let size = |before: &str, after: &str| {
        let rest = &text[text.find(before)? + before.len()..];
        rest[..rest.find(after)?].trim().parse::<ByteSize>().ok().map(|size| size.as_u64())
    };
    let asked = size("Tried to allocate ", ". ");
    let total = size("total capacity of ", " of which");
    let free = size(" of which ", " is free");
    let own = size("this process has ", " memory in use");
    let allocated = size("allocated memory ", " is allocated by PyTorch");
    let reserved = size("PyTorch, and ", " is reserved by PyTorch but unallocated");
    let others = || total?.checked_sub(free?)?.checked_sub(own?);
    let mut finding = Finding::new("PyTorch found no memory on a GPU.")
        .figure("asked for", asked)
        .figure("the GPU has", total)
        .figure("of it free", free)
        .figure("this process", own)
        .figure("tensors alive", allocated)
        .figure("kept for reuse", reserved);
    // Other processes have more than a tenth of the card.
    if let (Some(others), Some(total)) = (others(), total)
        && others > total / 10
    {
        finding = finding
            .figure("other processes", Some(others))
            .meaning("Other processes have a large part of the GPU.")
            .try_("nvidia-smi", "names them; an earlier run may still be there");
    }
    let fragmented = reserved.zip(asked).is_some_and(|(reserved, asked)| reserved >= asked);
    if fragmented {
        finding = finding
            .meaning(
                "The allocator keeps more than was asked for, in pieces between tensors: fragmentation. Lengths or sizes that change from batch to \
                 batch cause it.",
            )
            .try_("PYTORCH_ALLOC_CONF=expandable_segments:True", "lets PyTorch's pieces grow; PYTORCH_CUDA_ALLOC_CONF before 2.9")
            .try_("batches of similar length", "need tensors of fewer sizes");
    }
    finding = finding
        .meaning("The tensors that are alive have to become smaller. The one that was asked for only came last.");
    Some(
        finding
            .try_("in PyTorch", "autocast, checkpoint and smaller batches; the guide has a table of what each saves")
            .less(),
    )
}

fn torch_on_the_cpu(text: &str) -> Option<Finding> {
    let at = text.rfind("DefaultCPUAllocator")?;
    Some(
        Finding::new("PyTorch found no memory of the host.")
            .figure("asked for", number_before(&text[at..], " bytes"))
            .meaning("The process, its container (cgroup) or a limit (ulimit -v) has no more memory.")
            .less(),
    )
}

fn xla(text: &str) -> Option<Finding> {
    let at = text.rfind("RESOURCE_EXHAUSTED")?;
    let text = &text[at..];
    text.to_lowercase().contains("memory").then(|| {
        Finding::new("XLA (JAX, TensorFlow) found no memory on a device.")
            .figure("asked for", number_before(text, " bytes"))
            .meaning("XLA takes three quarters of a GPU at its start; what does not fit there is refused.")
            .less()
    })
}

/// A worker process of `DataLoader` that was ended.
fn loader(text: &str) -> Option<Finding> {
    let killed = text.contains("DataLoader worker") && text.contains("killed by signal");
    let shared = text.contains("DataLoader worker") && text.contains("shared memory");
    (killed || shared).then(|| {
        let finding = Finding::new("A worker process of PyTorch's DataLoader was ended.");
        match shared {
            true => finding
                .meaning("Workers hand over batches in /dev/shm, which is too small: 64 MiB in a container by default.")
                .try_("docker run --shm-size=8g", "makes it larger"),
            false => finding.meaning(
                "The host has no memory left: each worker is a process with its own copies, and prefetches batches.",
            ),
        }
        .try_("fewer workers, prefetch_factor=1", "take less")
        .try_("--loader-memory SIZE", "Kiln's workers are threads that share so many bytes")
    })
}

/// A process that Linux ended because the machine or its container had no memory.
fn killed(text: &str) -> Option<Finding> {
    let lower = text.to_lowercase();
    let says = [
        "oom-kill",
        "oomkilled",
        "out of memory: killed process",
        "exit code 137",
        "exited with code 137",
        "exit status 137",
    ];
    let ended = lower.lines().any(|line| line.trim() == "killed" || line.trim_end().ends_with(": killed"));
    (ended || says.iter().any(|text| lower.contains(text))).then(|| {
        Finding::new("Linux ended the process (SIGKILL, exit code 137).")
            .meaning("The memory of the host, or of the container, ran out. No program can catch that.")
            .try_("--memory SIZE", "on the CPU Kiln's whole process stays within it")
            .try_("--memory auto", "takes what the machine or its container has free")
            .try_("--loader-memory SIZE", "bounds batches that wait")
            .try_("docker run --memory, ulimit -v", "show the limit that was met")
    })
}

/// Messages of burn, CubeCL and drivers.
fn failure(text: &str) -> Option<Finding> {
    let failure = Failure::from_text(text)?;
    Some(match failure.kind() {
        Kind::TooBig => Finding::new("A single buffer is larger than the device ever hands out.")
            .figure("asked for", failure.bytes())
            .meaning("Memory may be free all the same: wgpu's devices and others have a largest buffer.")
            .try_("--micro-batch N", "makes the tensors of a step smaller")
            .less(),
        Kind::DeviceLost => Finding::new("The GPU is lost to the process.")
            .meaning("An error of a kernel, of the driver or of the hardware; it is not missing memory. Nothing works on it in this process any more.")
            .try_("--resume RUN", "goes on from the last checkpoint in a new process")
            .try_("CUDA_LAUNCH_BLOCKING=1", "names the operation, in PyTorch"),
        _ => Finding::new("The device had no memory left.")
            .figure("asked for", failure.bytes())
            .meaning("A step that runs out of memory in Kiln is retried with less; in a loop of your own it is not.")
            .less(),
    })
}

/// The number in front of a word.
fn number_before(text: &str, word: &str) -> Option<u64> {
    let before = &text[..text.find(word)?];
    let digits = before.rsplit(|char: char| !char.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PyTorch 2.9 prints it (c10/cuda/CUDACachingAllocator.cpp).
    const TORCH: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 0 has a total capacity of 23.65 GiB of \
        which 1.12 GiB is free. Including non-PyTorch memory, this process has 22.51 GiB memory in use. Of the allocated memory 20.37 GiB is \
        allocated by PyTorch, and 412.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting ..";

    fn names(finding: &Finding) -> Vec<&'static str> {
        finding.figures.iter().map(|(name, _)| *name).collect()
    }

    #[test]
    fn numbers_of_pytorch_are_told_apart() {
        let [plain] = &findings(TORCH)[..] else { panic!() };
        let all = ["asked for", "the GPU has", "of it free", "this process", "tensors alive", "kept for reuse"];
        assert_eq!(names(plain), all);
        assert_eq!(plain.meaning.len(), 1);
        let fragmented = TORCH.replace("412.00 MiB", "3.62 GiB");
        assert!(findings(&fragmented)[0].meaning[0].contains("fragmentation"));
        let others = TORCH.replace("22.51 GiB", "12.00 GiB");
        let [others] = &findings(&others)[..] else { panic!() };
        assert!(names(others).contains(&"other processes") && others.tries[0].0 == "nvidia-smi");
        // Before 2.1.
        let old = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 6.54 GiB already allocated)";
        assert_eq!(findings(old).len(), 1);
    }

    #[test]
    fn each_kind_of_text_has_its_answer() {
        for (text, expected) in [
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096000000 bytes. Error code 12",
                "of the host",
            ),
            (
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
                "XLA",
            ),
            ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", "DataLoader"),
            (
                "RuntimeError: DataLoader worker (pid 3) exited unexpectedly: insufficient shared memory (shm)",
                "DataLoader",
            ),
            ("[ 12.5] Out of memory: Killed process 4711 (python3) total-vm:3kB", "Linux ended"),
            ("epoch 3\nKilled\n", "Linux ended"),
            ("can't allocate buffer of size: 1099511627776", "larger than the device"),
            ("CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\"", "no memory left"),
            ("an illegal memory access was encountered", "is lost"),
        ] {
            let found = findings(text);
            assert!(found.len() == 1 && found[0].what.contains(expected), "{text}: {found:?}");
        }
        assert!(findings("loss 1.25, all is well").is_empty());
        assert!(findings("").is_empty());
    }

    #[test]
    fn bytes_are_read() {
        assert_eq!(number_before("you tried to allocate 4096 bytes. Error", " bytes"), Some(4096));
        assert_eq!(number_before("no number bytes", " bytes"), None);
    }
}
