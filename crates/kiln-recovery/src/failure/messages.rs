//! The kinds of memory failures, and all matching of message text that tells them.

// The messages that each pattern was made for, with their sources, and messages that must not match, are in `fixtures/messages.toml`. The
// texts of the crates below, by what their names say, are in `fixtures/sources.toml`. For each pattern, a test finds a text that is read
// differently without the pattern.

use serde::{Deserialize, Serialize};

/// The kind of a memory failure. It decides which remedies can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// No memory was left at that moment. Free memory, use less, or wait.
    OutOfMemory,
    /// One buffer is larger than the device ever hands out. A smaller micro-batch helps, freeing memory does not.
    TooBig,
    /// The device is lost or poisoned: every operation on it fails until the process ends. Never retried.
    DeviceLost,
}

/// The prefixes that the `Display` of [`Failure`](crate::Failure) prints. Each has one of the patterns below.
pub(crate) const OUT_OF_MEMORY: &str = "out of memory";
pub(crate) const TOO_BIG: &str = "too big for the device in one piece";
pub(crate) const DEVICE_LOST: &str = "the device is lost";
pub(crate) const UNWRITTEN: &str = "not written, as after a failed allocation";

/// Errors after which every operation on the device fails. All patterns are in lower case.
const LOST: &[&str] = &[
    "device is poisoned",
    "device was poisoned",
    // wgpu and Vulkan, and DEVICE_LOST
    "device is lost",
    "device lost",
    "error_device_lost",
    "logical device has been lost",
    // The CUDA driver's sticky errors, by name and by description
    "cuda_error_ecc_uncorrectable",
    "cuda_error_illegal_address",
    "cuda_error_launch_timeout",
    "cuda_error_context_is_destroyed",
    "cuda_error_assert",
    "cuda_error_hardware_stack_error",
    "cuda_error_illegal_instruction",
    "cuda_error_misaligned_address",
    "cuda_error_invalid_address_space",
    "cuda_error_invalid_pc",
    "cuda_error_launch_failed",
    "illegal memory access was encountered",
    "unspecified launch failure",
    "device-side assert",
    "uncorrectable ecc error",
    // HIP's
    "hiperroreccnotcorrectable",
    "hiperrorillegaladdress",
    "hiperrorlaunchtimeout",
    "hiperrorcontextisdestroyed",
    "hiperrorassert",
    "hiperrorlaunchfailure",
];

/// Errors about one buffer that is too big for an empty device.
const BIG: &[&str] = &[
    TOO_BIG,
    // cubecl: larger than any page, or than what a graph recording may add
    "can't allocate buffer of size",
    "no page may be added",
    // wgpu
    "is greater than the maximum buffer size",
    "buffer_binding_size` limit",
];

const MEMORY: &[&str] = &[
    OUT_OF_MEMORY,
    "out-of-memory",
    "outofmemory",
    "out_of_memory",
    // cubecl
    "out of device memory",
    "every page size the memory tracks",
    "couldn't map storage for a deferred allocation",
    // wgpu and Vulkan
    "not enough memory",
    "out_of_device_memory",
    "out_of_host_memory",
    "device memory allocation has failed",
    "host memory allocation has failed",
    // CUDA's and HIP's runtimes, cuBLAS, cuDNN, cuFFT, cuRAND, cuSOLVER, rocBLAS
    "errormemoryallocation",
    "status_alloc_failed",
    "status_allocation_failed",
    "cufft_alloc_failed",
    "device_allocation_failed",
    "host_allocation_failed",
    "rocblas_status_memory_error",
    // The host
    "memory allocation failed",
    "cannot allocate memory",
    "can't allocate memory",
    "bad_alloc",
    "oom when allocating",
];

/// Errors that leave memory unwritten like a failed allocation, but have another cause.
const OTHER_CAUSE: &[&str] = &[
    "compilation error",
    "validation error",
    "too many resources were requested",
    "needs a transport between devices",
    // cubecl-cuda: a launch that would fail again
    "an unknown error happened during launch",
];

/// The text between the name of a driver's call that failed and its status.
const STATUS: &str = " failed with status ";
/// The status of CUDA's driver (`CUDA_ERROR_OUT_OF_MEMORY`) and of HIP (`hipErrorOutOfMemory`) when memory runs out.
const NO_ROOM: &str = "2";

/// Errors that follow from a failure elsewhere: the message says that bytes are unwritten, but not why.
const CONSEQUENCE: &[&str] = &[
    UNWRITTEN,
    "memory location was never initialized",
    "was never allocated",
    "bytes were never written",
    "torn down before it could say",
    "the work was skipped: an input carried a failure",
    "was never written",
    "the work writing it",
    "was going to write it did not reach the end",
];

/// Whether a call of CUDA's driver (`cuEventCreate`) or of HIP (`hipMalloc`) ran out of memory. Calls of their libraries do not count,
/// because their status has other numbers. The names of these calls go on in lower case (`cublasCreate`).
fn is_out_of_room(text: &str) -> bool {
    text.match_indices(STATUS).any(|(at, _)| {
        let call = text[..at].rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        let status = text[at + STATUS.len()..].split(|c: char| !c.is_ascii_digit()).next();
        let named = ["cu", "hip"].iter().find_map(|api| call.strip_prefix(api));
        status == Some(NO_ROOM) && named.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
    })
}

/// The kind that a message names, and whether the message is only a consequence.
pub(crate) fn read(text: &str) -> Option<(Kind, bool)> {
    read_by(text, |_| true)
}

/// [`read`] by those patterns only that `uses` accepts. A test leaves one out.
fn read_by(text: &str, uses: impl Fn(&str) -> bool) -> Option<(Kind, bool)> {
    let out_of_room = is_out_of_room(text);
    let text = text.to_lowercase();
    let names = |patterns: &[&str]| patterns.iter().any(|pattern| uses(pattern) && text.contains(pattern));
    if names(LOST) {
        Some((Kind::DeviceLost, false))
    } else if names(BIG) {
        Some((Kind::TooBig, false))
    } else if names(MEMORY) || out_of_room {
        Some((Kind::OutOfMemory, false))
    } else if !names(OTHER_CAUSE) && names(CONSEQUENCE) {
        Some((Kind::OutOfMemory, true))
    } else {
        None
    }
}

/// The texts in front of the number of requested bytes.
const ASKED: &[&str] = &[
    "buffer of size: ",
    "memory allocating ",
    "no room for ",
    "can't allocate ",
    "deferred allocation of ",
    "to allocate ",
    "buffer size ",
];

/// The bytes of the failed allocation, written as `4096`, `4096 bytes` or `20.00 MiB`.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    bytes_by(text, |_| true)
}

/// [`bytes`] by those texts of [`ASKED`] only that `uses` accepts. A test leaves one out.
fn bytes_by(text: &str, uses: impl Fn(&str) -> bool) -> Option<u64> {
    let text = text.to_lowercase();
    let behind = |asked: &&str| text.match_indices(*asked).map(|(at, found)| at + found.len()).collect::<Vec<_>>();
    ASKED.iter().filter(|asked| uses(asked)).flat_map(behind).find_map(|at| amount(&text[at..]))
}

/// The number of bytes that `text`, in lower case, starts with.
fn amount(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit.trim_start().get(..3) {
        Some("kib") => 1_u64 << 10,
        Some("mib") => 1 << 20,
        Some("gib") => 1 << 30,
        Some("tib") => 1 << 40,
        _ => 1,
    };
    // A whole number stays exact.
    let number = number.trim_end_matches('.');
    match number.parse::<u64>() {
        Ok(number) => number.checked_mul(unit),
        Err(_) => number.parse::<f64>().ok().map(|number| (number * unit as f64) as u64),
    }
}

/// A message without the prefix that the `Display` of [`Failure`](crate::Failure) prints.
pub(crate) fn without_head(text: &str) -> &str {
    let heads = [OUT_OF_MEMORY, TOO_BIG, DEVICE_LOST, UNWRITTEN];
    heads.iter().find_map(|head| text.strip_prefix(head)?.strip_prefix(": ")).unwrap_or(text)
}

/// The message in one line, without backtraces.
pub(crate) fn clean(text: &str) -> String {
    let frame = |line: &str| {
        let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
        line.starts_with("at ") || (digits.len() < line.len() && digits.starts_with(": "))
    };
    let heading = |line: &str| {
        let word = line.trim_end_matches(':').to_lowercase();
        ["backtrace", "stack backtrace", "caused by", "asked at", "disabled backtrace", "no backtrace available"]
            .contains(&word.as_str())
    };
    let told: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !frame(line) && !heading(line)).collect();
    told.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of both tables.
    fn texts() -> Vec<String> {
        fn strings(value: &toml::Value, found: &mut Vec<String>) {
            match value {
                toml::Value::String(text) => found.push(text.clone()),
                toml::Value::Array(values) => values.iter().for_each(|value| strings(value, found)),
                toml::Value::Table(table) => table.values().for_each(|value| strings(value, found)),
                _ => {}
            }
        }
        let mut texts = Vec::new();
        let messages: toml::Table = include_str!("../../fixtures/messages.toml").parse().unwrap();
        messages["message"].as_array().unwrap().iter().for_each(|message| strings(&message["text"], &mut texts));
        let sources: toml::Table = include_str!("../../fixtures/sources.toml").parse().unwrap();
        strings(&toml::Value::Table(sources), &mut texts);
        texts
    }

    #[test]
    fn without_any_of_the_patterns_a_text_is_read_differently() {
        let texts = texts();
        let mut unneeded = Vec::new();
        for pattern in [LOST, BIG, MEMORY, OTHER_CAUSE, CONSEQUENCE].concat() {
            assert_eq!(pattern, pattern.to_lowercase());
            if !texts.iter().any(|text| read(text) != read_by(text, |other| other != pattern)) {
                unneeded.push(pattern);
            }
        }
        for pattern in ASKED {
            assert_eq!(*pattern, pattern.to_lowercase());
            if !texts.iter().any(|text| bytes(text) != bytes_by(text, |other| other != *pattern)) {
                unneeded.push(pattern);
            }
        }
        assert!(unneeded.is_empty(), "{unneeded:?}");
    }

    #[test]
    fn backtraces_are_left_out() {
        let text = "An IO error happened\nCaused by:\n  out of device memory allocating 64 bytes\n   0: std::backtrace\n   \
                    at /src/lib.rs:3:1\n  12: main\nBacktrace:\n";
        assert_eq!(clean(text), "An IO error happened: out of device memory allocating 64 bytes");
        assert_eq!(clean("3 tensors: out of memory"), "3 tensors: out of memory");
    }

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(bytes("can't allocate buffer of size: 1099511627776\n0: main"), Some(1 << 40));
        assert_eq!(bytes("CUDA out of memory. Tried to allocate 20.50 MiB (GPU 0)"), Some(21_495_808));
        assert_eq!(bytes("you tried to allocate 256 bytes. Error"), Some(256));
        assert_eq!(bytes("out of memory"), None);
        assert_eq!(bytes("tried to allocate everything"), None);
        assert_eq!(bytes("tried to allocate 99999999999999 TiB"), None);
    }
}
