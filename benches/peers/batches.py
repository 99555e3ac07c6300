"""What `train.py` trains on: endless batches on the host, images as bytes, and their way to the device."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from models import GptConfig, ResNetConfig

# ImageNet's figures for RGB, Fashion-MNIST's for gray images, as kiln_data::Normalize::for_channels.
MEAN_STD = {3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), 1: ((0.2860,), (0.3530,))}


@dataclass(frozen=True)
class Batch:
    """Images `[B, C, H, W]` u8 and labels `[B]`, or ids `[B, T]` and the ids one later `[B, T]`."""

    inputs: Tensor
    targets: Tensor

    def split(self, size: int) -> list[Batch]:
        return [Batch(*parts) for parts in zip(self.inputs.split(size), self.targets.split(size))]

    def pin(self) -> Batch:
        return Batch(self.inputs.pin_memory(), self.targets.pin_memory())

    def to(self, device: torch.device) -> tuple[Tensor, Tensor]:
        inputs, targets = (tensor.to(device, non_blocking=True) for tensor in (self.inputs, self.targets))
        if inputs.dtype == torch.uint8:
            mean, std = MEAN_STD[inputs.shape[1]]
            scale = torch.tensor([1 / (255 * s) for s in std], device=device)
            shift = torch.tensor([-m / s for m, s in zip(mean, std)], device=device)
            inputs = inputs.float() * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)
        return inputs, targets


def synthetic(config: ResNetConfig | GptConfig, batch: int, length: int, seed: int) -> Iterator[Batch]:
    """One random batch, again and again."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(config, GptConfig):
        ids = torch.randint(config.vocab, (batch, length + 1), generator=generator)
        fixed = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    else:
        shape = (batch, config.channels, config.image_size, config.image_size)
        images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        fixed = Batch(images, torch.randint(config.classes, (batch,), generator=generator))
    if torch.cuda.is_available():
        fixed = fixed.pin()
    while True:
        yield fixed


class IdxImages(Dataset):
    """The training half of an MNIST-like directory of IDX files, plain or in gzip."""

    def __init__(self, root: Path, transform: v2.Transform) -> None:
        self.images = torch.from_numpy(read_idx(root, "train-images-idx3-ubyte")).unsqueeze(1)
        self.labels = torch.from_numpy(read_idx(root, "train-labels-idx1-ubyte")).long()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.images[index]), self.labels[index]


def read_idx(root: Path, name: str) -> np.ndarray:
    plain, packed = root / name, root / f"{name}.gz"
    data = plain.read_bytes() if plain.is_file() else gzip.decompress(packed.read_bytes())
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"'{root / name}' is no IDX file of bytes")
    shape = np.frombuffer(data, ">u4", data[3], 4).astype(int)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy()


def is_idx(root: Path) -> bool:
    return any((root / f"train-images-idx3-ubyte{end}").is_file() for end in ("", ".gz"))


class Windows(Dataset):
    """A text, one token per byte, in windows one after the other; the last twentieth is held out, as Kiln does."""

    def __init__(self, path: Path, length: int) -> None:
        files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
        text = b"".join(file.read_bytes() for file in files)
        self.ids = torch.frombuffer(bytearray(text[: int(len(text) * 0.95)] or b"\0"), dtype=torch.uint8)
        self.length = length
        if len(self) < 1:
            raise ValueError(f"'{path}' has {len(text)} bytes of text, expected more than {2 * length}")

    def __len__(self) -> int:
        return max((len(self.ids) - self.length) // self.length, 0)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.length
        ids = self.ids[start : start + self.length + 1].long()
        return ids[:-1], ids[1:]


def from_disk(
    config: ResNetConfig | GptConfig, path: Path, batch: int, length: int, workers: int, seed: int
) -> Iterator[Batch]:
    """Shuffled batches of a data set, epoch after epoch, augmented as Kiln's recipes do."""
    if isinstance(config, GptConfig):
        data: Dataset = Windows(path, length)
    else:
        size = config.image_size
        area = (0.6 if size < 64 else 0.25, 1.0)
        transform = v2.Compose([v2.RandomResizedCrop(size, scale=area, antialias=True), v2.RandomHorizontalFlip()])
        if is_idx(path):
            data, channels, classes = IdxImages(path, transform), 1, None
        else:
            data = ImageFolder(str(path), v2.Compose([v2.PILToTensor(), transform]))
            channels, classes = 3, len(data.classes)
        if channels != config.channels:
            raise ValueError(f"images of '{path}' have {channels} channels, expected {config.channels} as the model")
        if classes is not None and classes > config.classes:
            raise ValueError(f"'{path}' has {classes} classes, expected at most {config.classes} as the model")
    samples = len(data)  # type: ignore[arg-type]
    if samples < batch:
        raise ValueError(f"'{path}' has {samples} samples, expected at least one batch of {batch}")
    loader = DataLoader(
        data,
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator().manual_seed(seed),
    )
    while True:
        for inputs, targets in loader:
            yield Batch(inputs, targets)
