"""Loads images with torch's DataLoader and reports its speed and memory as one line of JSON.

    python benches/peers/loader.py photos/12mp --decoder pil --workers 2
    python benches/peers/loader.py photos/12mp --decoder torchvision --memory
    python benches/peers/loader.py --packed fixtures/fashion-mnist

Each image of the class folders is decoded, brought to size x size, and put into a batch of u8, `[B, 3, S,
S]`. Decoders: pil decodes whole; draftN has PIL's JPEG decoder scale while it decodes, to at least N pixels;
torchvision is torchvision.io with transforms on tensors. EXIF is not looked at.
--packed is the data set as torchvision's examples have it: FashionMNIST, ToTensor, Normalize.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable

from measures import cpu_seconds, machine, reset_peak_rss, spread, status

try:
    import torch
    import torchvision
    from PIL import Image, __version__ as pillow_version
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset
    from torchvision.datasets import FashionMNIST, ImageFolder
    from torchvision.io import ImageReadMode, decode_image
    from torchvision import transforms
    from torchvision.transforms import v2
except (ImportError, OSError, ValueError) as error:
    sys.exit(f"loader.py needs torch and torchvision (pip install -r benches/peers/requirements.txt): {error}")

DECODERS = ("pil", "draft224", "draft448", "torchvision")
PACKED = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def open_pil(path: str) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def open_draft224(path: str) -> Image.Image:
    return open_draft(path, 224)


def open_draft448(path: str) -> Image.Image:
    return open_draft(path, 448)


def open_draft(path: str, side: int) -> Image.Image:
    with Image.open(path) as image:
        image.draft("RGB", (side, side))
        return image.convert("RGB")


def open_torchvision(path: str) -> Tensor:
    return decode_image(path, ImageReadMode.RGB)


OPENERS: dict[str, Callable[[str], Any]] = {
    "pil": open_pil,
    "draft224": open_draft224,
    "draft448": open_draft448,
    "torchvision": open_torchvision,
}


def transform_for(args: argparse.Namespace) -> v2.Compose:
    size = args.size
    first: list[v2.Transform] = {
        "resize": [v2.Resize((size, size), antialias=True)],
        "evaluation": [v2.Resize(round(size / 0.875), antialias=True), v2.CenterCrop(size)],
        "training": [v2.RandomResizedCrop(size, scale=(0.25, 1.0), antialias=True), v2.RandomHorizontalFlip()],
    }[args.transform]
    to_tensor = [] if args.decoder == "torchvision" else [v2.PILToTensor()]
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    return v2.Compose([*first, *to_tensor, *(floats if args.normalize else [])])


def packed(root: Path, unpacked: Path) -> Dataset:
    """torchvision's data set, which wants plain files in a folder of its own."""
    raw = unpacked / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for train in PACKED:
        for name in (train, train.replace("train", "t10k")):
            if (root / name).is_file():
                shutil.copyfile(root / name, raw / name)
            elif (root / f"{name}.gz").is_file():
                with gzip.open(root / f"{name}.gz") as source, (raw / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
            else:
                sys.exit(f"loader.py: no '{root / name}' and no .gz of it, expected four IDX files in --packed")
    floats = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.2860,), (0.3530,))])
    return FashionMNIST(str(unpacked), train=True, transform=floats)


def folder(args: argparse.Namespace) -> ImageFolder:
    data = ImageFolder(str(args.directory), transform_for(args), loader=OPENERS[args.decoder])
    if args.only:
        if args.only not in data.classes:
            raise ValueError(f"--only '{args.only}', expected one of {', '.join(data.classes)}")
        data.samples = [(path, label) for path, label in data.samples if data.classes[label] == args.only]
    return data


class Memory:
    """Watches this process and its workers from a thread of its own: the largest sum of what is resident."""

    def __init__(self, proportional: bool) -> None:
        # PSS divides what is shared among those who share it. A look takes 10 ms, so that times do not count.
        self.proportional, self.peak, self.stopped = proportional, 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        while not self.stopped.wait(0.05):
            pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
            self.peak = max(self.peak, sum(map(self.resident, pids)))

    def resident(self, pid: int) -> int:
        return proportional(pid) if self.proportional else status("VmRSS", pid)

    def stop(self) -> int:
        self.stopped.set()
        self.thread.join()
        return self.peak


def proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def measure(data: Dataset, args: argparse.Namespace) -> dict[str, Any]:
    before = proportional(os.getpid()) if args.memory else status("VmRSS")
    reset = reset_peak_rss()
    watched = Memory(args.memory)
    started = cpu_seconds()
    samples, rates = run(data, args)
    gc.collect()
    used = cpu_seconds() - started  # workers have ended: their time counts
    peak = watched.stop()
    if args.workers == 0 and not args.memory and reset:
        peak = max(peak, status("VmHWM"))  # sees what the samples miss
    kind = "pss" if args.memory else "rss"
    memory = {f"{kind}_at_start": before, f"{kind}_peak_of_all": peak, f"{kind}_above_start": peak - before}
    figures = {"images": samples, "peak_bytes": memory}
    if not args.memory:
        figures |= {
            "images_per_s": spread(rates),
            "images_per_cpu_s": round(samples / used, 2),
            "cpu_s": round(used, 3),
        }
    return figures


def run(data: Dataset, args: argparse.Namespace) -> tuple[int, list[float]]:
    """All epochs; images per second of each, but of the first only when it is alone."""
    loader = DataLoader(
        data,
        args.batch,
        shuffle=args.shuffle,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        generator=torch.Generator().manual_seed(1),
    )
    samples, rates = 0, []
    for _ in range(args.epochs):
        started, loaded = time.perf_counter(), 0
        for images, _ in loader:
            loaded += len(images)
        samples += loaded
        rates.append(loaded / (time.perf_counter() - started))
    return samples, rates[1:] or rates


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("directory", type=Path, nargs="?", help="a directory per class")
    add("--packed", type=Path, metavar="DIR", help="IDX files as in fixtures/fashion-mnist")
    add("--only", metavar="CLASS", help="one class of the directory")
    add("--decoder", choices=DECODERS, default="pil")
    add("--workers", type=int, default=2)
    add("--size", type=int, default=224)
    add("--batch", type=int, help="[default: 8; 256 with --packed]")
    add("--transform", choices=("resize", "evaluation", "training"), default="resize",
        help="of the whole image; the middle after a resize to 8/7; a random part, mirrored at random")  # fmt: skip
    add("--normalize", action="store_true", help="batches of f32, normalised, as torch's examples have them")
    add("--shuffle", action="store_true")
    add("--epochs", type=int, default=3, help="the first is not in images_per_s [default: 3]")
    add("--memory", action="store_true", help="proportional memory (PSS) of all processes instead of times")
    args = parser.parse_args()
    if (args.directory is None) == (args.packed is None):
        parser.error("expected either a directory of classes or --packed DIR")
    for name in ("size", "batch", "epochs"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}, expected at least 1")
    if args.workers < 0:
        parser.error(f"--workers is {args.workers}, expected at least 0")
    root = args.directory or args.packed
    if not root.is_dir():
        parser.error(f"'{root}' is no directory")
    args.batch = args.batch or (256 if args.packed else 8)
    return args


def main() -> None:
    args = arguments()
    Image.MAX_IMAGE_PIXELS = None  # the largest images are meant
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as unpacked:
        try:
            if args.packed:
                data: Dataset = packed(args.packed, Path(unpacked))
            else:
                data = folder(args)
            figures = measure(data, args)
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            sys.exit(f"loader.py: {str(error).strip().splitlines()[-1]}")
    flags = {name: value.name if isinstance(value, Path) else value for name, value in vars(args).items()}
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__, "pillow": pillow_version}
    print(json.dumps({"peer": "pytorch", **figures, **versions, **machine(), "flags": flags}))


if __name__ == "__main__":
    main()
