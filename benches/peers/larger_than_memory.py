"""GPT-2 in less memory than it has bytes, by the ways of PyTorch's projects: what they need and take.

  memory      a training step of transformers' GPT-2 in memory, with gradient checkpointing
  accelerate  accelerate.disk_offload: a forward pass whose parameters are read from a disk (it does not train)
  deepspeed   DeepSpeed ZeRO 3 with parameters and optimizer state on a disk ("NVMe offload")

Linux only. Ends with one line of JSON: seconds of each step, and VmHWM, the most that the process had resident: before the model, until it
was made, and in the steps. transformers 5.24, accelerate 1.15 and deepspeed 0.19 are in no requirements.txt: install them beside.
DeepSpeed compiles operations when it starts: it needs ninja, a C++ compiler, and the headers of Python and libaio.
"""

import argparse
import gc
import json
import os
import tempfile
import time


def resident_mib(forget=False):
    with open("/proc/self/status") as status:
        most = next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))
    if forget:
        gc.collect()
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")
    return most


def model_of(arguments):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"gpt2": (768, 12, 12), "gpt2-large": (1280, 36, 20)}
    width, layers, heads = sizes[arguments.model]
    config = GPT2Config(n_embd=width, n_layer=layers, n_head=heads, n_positions=arguments.context, use_cache=False)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return GPT2LMHeadModel(config)


def in_memory(arguments, tokens):
    import torch

    model = model_of(arguments).train()
    made = resident_mib()
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    seconds = []
    for _ in range(arguments.steps):
        begun = time.perf_counter()
        for text in tokens:
            (model(text[None], labels=text[None]).loss / len(tokens)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(round(time.perf_counter() - begun, 2))
    return made, seconds


def by_accelerate(arguments, tokens, directory):
    import torch
    from accelerate import disk_offload

    model = model_of(arguments).eval()
    made = resident_mib()
    disk_offload(model, directory, execution_device=torch.device("cpu"))
    resident_mib(forget=True)
    seconds = []
    for _ in range(arguments.steps):
        begun = time.perf_counter()
        with torch.no_grad():
            for text in tokens:
                model(text[None], labels=text[None])
        seconds.append(round(time.perf_counter() - begun, 2))
    return made, seconds


def by_deepspeed(arguments, tokens, directory):
    os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    import deepspeed

    on_disk = {"device": "nvme", "nvme_path": directory, "pin_memory": False, "buffer_count": 4}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": len(tokens),
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {**on_disk, "buffer_size": 50_000_000},
            "offload_optimizer": on_disk,
            "sub_group_size": 10_000_000,
            "stage3_max_live_parameters": 10_000_000,
            "stage3_prefetch_bucket_size": 0,
        },
    }
    deepspeed.init_distributed(dist_backend="gloo")
    model = model_of(arguments).train()  # zero.Init, which divides it at once, fails with torch 2.15
    made = resident_mib()
    model.gradient_checkpointing_enable()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    resident_mib(forget=True)
    seconds = []
    for _ in range(arguments.steps):
        begun = time.perf_counter()
        for text in tokens:
            engine.backward(engine(text[None], labels=text[None]).loss)
            engine.step()
        seconds.append(round(time.perf_counter() - begun, 2))
    return made, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=["memory", "accelerate", "deepspeed"])
    parser.add_argument("--model", choices=["gpt2", "gpt2-large"], default="gpt2")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=1, help="texts, one at a time")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--directory", help="for what is offloaded [default: a temporary one]")
    arguments = parser.parse_args()

    import torch

    before = resident_mib()
    torch.manual_seed(0)
    tokens = torch.randint(50257, (arguments.batch_size, arguments.context))
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        match arguments.way:
            case "memory":
                made, seconds = in_memory(arguments, tokens)
            case "accelerate":
                made, seconds = by_accelerate(arguments, tokens, directory)
            case _:
                made, seconds = by_deepspeed(arguments, tokens, directory)
    resident = {"before": before, "made": made, "steps": resident_mib()}
    print(json.dumps({**vars(arguments), "torch": torch.__version__, "seconds": seconds, "resident_mib": resident}))


if __name__ == "__main__":
    main()
