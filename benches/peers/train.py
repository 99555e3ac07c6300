"""Trains one of Kiln's networks in PyTorch for some steps and reports speed and memory as one line of JSON.

The step is Kiln's: the batch is on the host (images as bytes), is cut into micro-batches, normalised on the
device, and the gradients are added up, clipped by global norm, and given to the optimizer of Kiln's recipe;
the loss is read back.

    python benches/peers/train.py --model resnet-small --steps 20
    python benches/peers/train.py --model gpt2-124m --precision bf16 --device cuda --compile --batch 8
    python benches/peers/train.py --model resnet50 --device cuda --memory-limit 16GiB --find-largest-batch
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterator

from measures import MIB, allocator_peak, bytes_of, machine, processor, reset_peak_rss, spread, status

try:
    import torch
    import torch.nn.functional as F
    import torchvision
    from torch import Tensor, nn
    from batches import Batch, from_disk, synthetic
    from models import CONFIGS, Gpt, GptConfig, ResNet, ResNetConfig, SmallConfig, build, forward, segment_lengths, sizes_of
except (ImportError, OSError, ValueError) as error:
    sys.exit(f"train.py needs torch and torchvision (pip install -r benches/peers/requirements.txt): {error}")

OUT_OF_MEMORY = 3  # exit status


@dataclass(frozen=True)
class Recipe:
    """Defaults of `cargo xtask train`."""

    batch: int
    optimizer: str
    learning_rate: float
    floor: float
    clip_norm: float
    label_smoothing: float
    warmup: float  # steps in which the learning rate rises, or below 1 a fraction of all steps


IMAGES = Recipe(64, "sgd", 0.1, 0.0, 5.0, 0.1, 0.1)
RECIPES = {ResNetConfig: IMAGES, SmallConfig: IMAGES, GptConfig: Recipe(8, "adamw", 3e-3, 0.1, 1.0, 0.0, 100)}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def arguments() -> tuple[argparse.Namespace, ResNetConfig | GptConfig]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, choices=CONFIGS)
    add("--batch", type=int, help="samples per step [default: 64 images, 8 sequences]")
    add("--micro-batch", type=int, help="samples on the device at once [default: the batch]")
    add("--length", type=int, help="tokens per sequence [default: the model's context]")
    add("--image-size", type=int, help="pixels per side [default: 28 for resnet-small, else 224]")
    add("--width", type=int, help="channels of the first stage of a ResNet")
    add("--classes", type=int, help="classes of a ResNet")
    add("--stem", choices=("imagenet", "cifar"), help="first layers of a ResNet")
    add("--vocab", type=int, help="tokens of a decoder's vocabulary")
    add("--precision", choices=DTYPES, default="f32", help="torch.autocast; f16 with a GradScaler")
    add("--tf32", action="store_true", help="cuda: matrix products and convolutions of f32 in TF32")
    add("--channels-last", action="store_true", help="ResNet: NHWC in memory")
    add("--checkpoint", default="none", metavar="PLAN", help="none, all, every:K or segments:N")
    add("--compile", action="store_true", help="torch.compile of the forward pass and the loss")
    add("--optimizer", choices=("sgd", "adamw"), help="[default: sgd for ResNet, adamw for decoders]")
    add("--fused", action="store_true", help="torch's fused optimizer")
    add("--learning-rate", type=float, help="peak [default: 0.1, 0.003]")
    add("--steps", type=int, default=20, help="measured steps")
    add("--warmup", type=int, default=3, help="steps before, which are not measured")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add(
        "--input", default="synthetic", metavar="synthetic|PATH", help="class folders or IDX files; a text for decoders"
    )
    add("--workers", type=int, default=2, help="of the DataLoader, with --input PATH")
    add("--threads", type=int, help="of torch on the CPU [default: torch's]")
    add("--seed", type=int, default=1)
    add("--memory-limit", type=bytes_argument, metavar="BYTES", help="as in 16GiB; see README.md for what it bounds")
    add("--find-largest-batch", action="store_true", help="by doubling and halving; cuda: a line of JSON for each size")
    add(
        "--allocator-peak",
        action="store_true",
        help="cpu: bytes of tensors, by the profiler in a second pass of 3 steps",
    )
    add("--loss-curve", type=Path, metavar="FILE", help="one line of JSON per step, warm-up included")
    args = parser.parse_args()

    for name in ("batch", "micro_batch", "length", "image_size", "width", "classes", "vocab", "steps", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} is {value}, expected at least 1")
    for name in ("warmup", "workers", "seed"):
        if getattr(args, name) < 0:
            parser.error(f"--{name} is {getattr(args, name)}, expected at least 0")
    if args.learning_rate is not None and not (args.learning_rate > 0 and math.isfinite(args.learning_rate)):
        parser.error(f"--learning-rate is {args.learning_rate}, expected a number above 0")
    if args.find_largest_batch and args.micro_batch:
        parser.error("--find-largest-batch looks for the largest batch in one piece, expected no --micro-batch")
    if args.allocator_peak and args.device != "cpu":
        parser.error("--allocator-peak is for --device cpu; cuda's allocator reports its peak in every run")
    if args.input != "synthetic" and not Path(args.input).exists():
        parser.error(f"--input '{args.input}' does not exist, expected synthetic or a path")
    config = CONFIGS[args.model]
    others = {"image_size", "width", "classes", "stem"} if isinstance(config, GptConfig) else {"length", "vocab"}
    for name in sorted(others):
        if getattr(args, name) is not None:
            parser.error(f"--{name.replace('_', '-')} is not an option of {args.model}")
    if isinstance(config, GptConfig):
        config = replace(config, vocab=args.vocab or config.vocab)
        args.length = args.length or config.context
        if args.length > config.context:
            config = replace(config, context=args.length)
        if args.input != "synthetic" and config.vocab < 256:
            parser.error(f"--vocab is {config.vocab}, expected at least 256 for the bytes of a text")
    else:
        given = {name: getattr(args, name) for name in ("image_size", "width", "classes", "stem")}
        config = replace(config, **{name: value for name, value in given.items() if value is not None})
    try:
        segment_lengths(args.checkpoint, 1)
    except ValueError as error:
        parser.error(f"--checkpoint: {error}")
    recipe = RECIPES[type(config)]
    args.batch = args.batch or recipe.batch
    args.optimizer = args.optimizer or recipe.optimizer
    args.learning_rate = args.learning_rate or recipe.learning_rate
    return args, config


def bytes_argument(text: str) -> int:
    try:
        return bytes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def rate(step: int, total: int, peak: float, recipe: Recipe) -> float:
    """kiln_training::ScheduleConfig: a linear warm-up, then half a cosine."""
    floor = recipe.floor
    warmup = round(recipe.warmup * total) if recipe.warmup < 1 else int(recipe.warmup)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def optimizer_for(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """kiln_training::OptimizerConfig: weight decay spares parameters of one dimension."""
    decay = {"sgd": 5e-4, "adamw": 0.1}[args.optimizer]
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    fused = args.fused or None
    if args.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=args.learning_rate, momentum=0.9, nesterov=True, fused=fused)
    return torch.optim.AdamW(groups, lr=args.learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=fused)


class Trainer:
    """Model, optimizer and loss scale, and the step."""

    def __init__(self, args: argparse.Namespace, config: ResNetConfig | GptConfig) -> None:
        self.args, self.device, self.recipe = args, torch.device(args.device), RECIPES[type(config)]
        torch.manual_seed(args.seed)
        self.model: ResNet | Gpt = build(config).to(self.device).train()
        if args.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = optimizer_for(self.model, args)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=args.precision == "f16")
        self.loss_of = torch.compile(self.loss) if args.compile else self.loss
        self.steps_done, self.total = 0, args.warmup + args.steps

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = forward(self.model, inputs, self.args.checkpoint).float()
        if logits.dim() == 3:
            logits, targets = logits.flatten(0, 1), targets.flatten()
        return F.cross_entropy(logits, targets, label_smoothing=self.recipe.label_smoothing)

    def step(self, batch: Batch) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.steps_done, self.total, self.args.learning_rate, self.recipe)
        self.optimizer.zero_grad(set_to_none=True)
        samples, total = len(batch.inputs), torch.zeros((), device=self.device)
        for part in batch.split(self.args.micro_batch or samples):
            inputs, targets = part.to(self.device)
            if self.args.channels_last:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            with self.autocast():
                loss = self.loss_of(inputs, targets) * (len(inputs) / samples)
            self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.steps_done += 1
        return total.item()

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.args.precision == "f32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, DTYPES[self.args.precision])


def set_up(args: argparse.Namespace) -> None:
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit(f"train.py: torch {torch.__version__} finds no CUDA device here")
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
        torch.zeros(1, device="cuda")
    else:  # threads and libraries, which are no step's
        x = torch.zeros(2, 8, 64, 64, requires_grad=True)
        F.conv2d(x, torch.zeros(8, 8, 3, 3)).sum().backward()


def limit_memory(limit: int, device: str) -> None:
    """cuda: what torch's caching allocator may hold. cpu: private memory above that of now (RLIMIT_DATA)."""
    if device == "cuda":
        there = torch.cuda.get_device_properties(0).total_memory
        if limit > there:
            sys.exit(f"train.py: --memory-limit {limit} is more than the card's {there}")
        torch.cuda.set_per_process_memory_fraction(limit / there)
    else:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + limit, hard))


def is_out_of_memory(error: BaseException) -> bool:
    messages = ("can't allocate memory", "not enough memory", "bad_alloc", "out of memory", "could not create a memory",
                "could not create a primitive", "ALLOC_FAILED", "Cannot allocate memory")  # fmt: skip
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(message in str(error) for message in messages)


def batches_for(args: argparse.Namespace, config: ResNetConfig | GptConfig) -> Iterator[Batch]:
    if args.input == "synthetic":
        return synthetic(config, args.batch, args.length, args.seed)
    return from_disk(config, Path(args.input), args.batch, args.length, args.workers, args.seed)


def train(args: argparse.Namespace, config: ResNetConfig | GptConfig) -> dict[str, Any]:
    cuda = args.device == "cuda"
    batches = batches_for(args, config)
    next(batches)  # workers are started
    if args.memory_limit:
        limit_memory(args.memory_limit, args.device)
    reset, before = reset_peak_rss(), status("VmRSS")
    trainer = Trainer(args, config)
    parameters, buffers = sizes_of(trainer.model)
    losses, times, waits, processor_times = [], [], [], []
    with contextlib.ExitStack() as files:
        curve = files.enter_context(args.loss_curve.open("w")) if args.loss_curve else None
        for step in range(args.warmup + args.steps):
            if step == args.warmup and cuda:
                torch.cuda.reset_peak_memory_stats()
            started, processor_started = time.perf_counter(), time.process_time()
            batch = next(batches)
            ready = time.perf_counter()
            losses.append(trainer.step(batch))  # reads the loss, which waits for the device
            if cuda:
                torch.cuda.synchronize()
            ended = time.perf_counter()
            if step >= args.warmup:
                times.append(1e3 * (ended - started))
                waits.append(1e3 * (ready - started))
                processor_times.append(1e3 * (time.process_time() - processor_started))
            if curve:
                curve.write(json.dumps({"step": step + 1, "loss": losses[-1]}) + "\n")
    milliseconds = spread(times)
    if cuda:
        memory = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    else:
        memory = {"rss_above_start": status("VmHWM") - before if reset else None, "rss_at_start": before}
    del trainer
    if args.allocator_peak:
        memory["tensors"] = allocator_peak(lambda: three_steps(args, config, next(batches)))
    shape = {"length": args.length} if isinstance(config, GptConfig) else {"image_size": config.image_size}
    return {
        "peer": "pytorch",
        "model": args.model,
        "parameters": parameters,
        "running_statistics": buffers,
        "batch": args.batch,
        "micro_batch": args.micro_batch,
        **shape,
        "samples_per_s": round(1e3 * args.batch / milliseconds["median"], 2),
        "step_ms": milliseconds,
        "wait_ms": spread(waits),
        "processor_ms": spread(processor_times),
        "peak_bytes": memory,
        "loss_first": losses[0],
        "loss_last": losses[-1],
    }


def three_steps(args: argparse.Namespace, config: ResNetConfig | GptConfig, batch: Batch) -> None:
    trainer = Trainer(args, config)
    for _ in range(3):
        trainer.step(batch)


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if args.device == "cuda" else processor()
    cuda = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()} if args.device == "cuda" else {}
    flags = {name: value.name if isinstance(value, Path) else value for name, value in vars(args).items()}
    flags |= {"input": Path(args.input).name, "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY")}
    threads = torch.get_num_threads()
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    return {"device": device, "threads": threads, **versions, **cuda, **machine(), "flags": flags}


def find_largest_batch(args: argparse.Namespace, config: ResNetConfig | GptConfig) -> dict[str, Any]:
    """The largest batch of which 3 steps go well.

    cuda: to 1/16, in this process, because the allocator says when it has no more and gives everything back; one
    line of JSON after each trial, so that a search that is ended leaves what it had. cpu: to 1/64, each size in a
    process of its own, because memory that runs out may end it.
    """
    cuda = args.device == "cuda"
    trials: list[dict[str, Any]] = []

    def fits(batch: int) -> bool:
        trial = trial_here(args, config, batch) if cuda else trial_apart(batch)
        trials.append({"batch": batch} | trial)
        print(f"batch {batch}: {'fits' if trial['fits'] else 'does not fit'}", file=sys.stderr)
        if cuda:
            good = max((t["batch"] for t in trials if t["fits"]), default=0)
            bad = min((t["batch"] for t in trials if not t["fits"]), default=None)
            print(json.dumps({"largest_batch": good, "fails_at": bad, "unfinished": True}), flush=True)
        return trial["fits"]

    unlimited = args.memory_limit is None and not cuda
    good, bad = search(fits, args.batch, 16 if cuda else 64, 1 << 16 if unlimited else None)
    return {"peer": "pytorch", "model": args.model, "largest_batch": good, "fails_at": bad, "trials": trials}


def search(fits: Callable[[int], bool], start: int, grain: int, most: int | None) -> tuple[int, int]:
    """The largest size that fits and the smallest that does not, to 1/grain, by doubling and halving.

    >>> search(lambda size: size <= 100, 32, 16, None)
    (100, 104)
    >>> search(lambda size: size <= 5, 32, 64, None)
    (5, 6)
    >>> search(lambda size: False, 4, 16, None)
    (0, 1)
    """
    good, bad = 0, start
    while fits(bad):
        good, bad = bad, 2 * bad
        if most is not None and good >= most:
            break
    while bad - good > max(1, good // grain):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good, bad


def trial_here(args: argparse.Namespace, config: ResNetConfig | GptConfig, batch: int) -> dict[str, Any]:
    own = {"batch": batch, "steps": 3, "warmup": 0, "loss_curve": None, "allocator_peak": False}
    result = None
    try:
        result = train(argparse.Namespace(**(vars(args) | own)), config)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside of the handler, which keeps the step's tensors.
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return {"fits": True, "peak_bytes": result["peak_bytes"]} if result else {"fits": False}


def trial_apart(batch: int) -> dict[str, Any]:
    own = ["--find-largest-batch", "--allocator-peak", "--batch", "--steps", "--warmup", "--loss-curve"]
    command = [sys.executable, __file__, *without(sys.argv[1:], own), "--steps", "3", "--warmup", "0"]
    done = subprocess.run([*command, "--batch", str(batch)], capture_output=True, text=True)
    if done.returncode == 0:
        return {"fits": True, "peak_bytes": json.loads(done.stdout.splitlines()[-1])["peak_bytes"]}
    if done.returncode < 0:
        return {"fits": False, "ended_by_signal": -done.returncode}  # a library that aborts when memory runs out
    if done.returncode != OUT_OF_MEMORY:
        sys.exit(f"train.py: batch {batch} failed otherwise than for want of memory:\n{done.stderr.strip()}")
    return {"fits": False}


def without(words: list[str], options: list[str]) -> list[str]:
    """The command line less some options and their values."""
    kept, flags = [], ("--find-largest-batch", "--allocator-peak")
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word.split("=")[0] in options:
            skip = word not in flags and "=" not in word
        else:
            kept.append(word)
    return kept


def main() -> None:
    args, config = arguments()
    set_up(args)
    if args.find_largest_batch:
        if args.device == "cpu" and args.memory_limit is None:
            sys.exit("train.py: --find-largest-batch on the CPU would fill the machine, expected --memory-limit")
        print(json.dumps(find_largest_batch(args, config) | provenance(args)))
        return
    failed = ""
    try:
        result = train(args, config)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        failed = str(error).splitlines()[0]
    except (ValueError, OSError, EOFError) as error:
        sys.exit(f"train.py: {error}")
    if failed:  # outside of the handler, which keeps the step's tensors
        print(json.dumps({"peer": "pytorch", "model": args.model, "batch": args.batch, "out_of_memory": failed}))
        sys.exit(OUT_OF_MEMORY)
    print(json.dumps(result | provenance(args)))


if __name__ == "__main__":
    main()
