"""The networks of crates/kiln-models in PyTorch, with their sizes.

ResNet is torchvision's own, narrowed; the decoder is GPT-2 with torch's fused attention. Both run as a chain
of parts, so that a plan can recompute segments of it. `check.py` compares them with the recorded references
in fixtures/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Sequence

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import resnet

Part = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ResNetConfig:
    """What a residual network is built from; `stem` is imagenet (7x7 and max-pool) or cifar (3x3)."""

    depth: int
    classes: int
    channels: int = 3
    width: int = 64
    stem: str = "imagenet"
    image_size: int = 224

    STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}

    @property
    def expansion(self) -> int:
        return 1 if self.depth < 50 else 4

    def sizes(self) -> tuple[int, int]:
        """Parameters, and elements of batch-norm's running statistics, by formula."""
        convolutions, norms = self.channels * self.width * (49 if self.stem == "imagenet" else 9), self.width
        before = self.width
        for stage, blocks in enumerate(self.STAGES[self.depth]):
            inner = self.width << stage
            out = inner * self.expansion
            for block in range(blocks):
                if self.expansion == 1:
                    convolutions += 9 * inner * (before + out)
                    norms += inner + out
                else:
                    convolutions += inner * (before + 9 * inner + out)
                    norms += 2 * inner + out
                if before != out or (block == 0 and stage > 0):
                    convolutions += before * out
                    norms += out
                before = out
        return convolutions + 2 * norms + (before + 1) * self.classes, 2 * norms


@dataclass(frozen=True)
class GptConfig:
    """What a decoder is built from."""

    layers: int
    heads: int
    width: int
    vocab: int = 50257
    context: int = 1024

    def sizes(self) -> tuple[int, int]:
        """Parameters by formula, the shared embedding counted once, and no buffers."""
        block = 12 * self.width**2 + 13 * self.width
        return (self.vocab + self.context + 2) * self.width + self.layers * block, 0


@dataclass(frozen=True)
class SmallConfig:
    """A network of torchvision's made for little memory, as it is there."""

    name: str
    classes: int = 1000
    channels: int = 3
    image_size: int = 224


CONFIGS: dict[str, ResNetConfig | GptConfig | SmallConfig] = {
    "resnet-small": ResNetConfig(18, classes=10, channels=1, width=16, image_size=28),  # of `cargo xtask train resnet`
    "resnet18": ResNetConfig(18, classes=1000),
    "resnet34": ResNetConfig(34, classes=1000),
    "resnet50": ResNetConfig(50, classes=1000),
    "resnet101": ResNetConfig(101, classes=1000),
    "gpt-small": GptConfig(4, 4, 128, vocab=256, context=64),  # of `cargo xtask train gpt`: GptConfig::tiny
    "gpt-256": GptConfig(6, 8, 256, vocab=256, context=128),
    "gpt-mini": GptConfig(6, 6, 384),
    "gpt2-124m": GptConfig(12, 12, 768),
    "gpt2-medium": GptConfig(24, 16, 1024),
    "mobilenet_v2": SmallConfig("mobilenet_v2"),
    "mobilenet_v3_large": SmallConfig("mobilenet_v3_large"),
    "shufflenet_v2_x1_0": SmallConfig("shufflenet_v2_x1_0"),
}


class ResNet(resnet.ResNet):
    """torchvision's network with `width` channels in the first stage, and optionally the 3x3 stem."""

    def __init__(self, config: ResNetConfig) -> None:
        block = resnet.BasicBlock if config.expansion == 1 else resnet.Bottleneck
        stages, width = config.STAGES[config.depth], config.width
        with torch.device("meta"):  # layers of the standard width, which take no memory and are replaced
            super().__init__(block, list(stages), num_classes=config.classes)
        kernel, stride, padding = (7, 2, 3) if config.stem == "imagenet" else (3, 1, 1)
        self.conv1 = nn.Conv2d(config.channels, width, kernel, stride, padding, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        if config.stem == "cifar":
            self.maxpool = nn.Identity()
        self.inplanes = width
        self.layer1 = self._make_layer(block, width, stages[0])
        self.layer2 = self._make_layer(block, 2 * width, stages[1], stride=2)
        self.layer3 = self._make_layer(block, 4 * width, stages[2], stride=2)
        self.layer4 = self._make_layer(block, 8 * width, stages[3], stride=2)
        self.fc = nn.Linear(8 * width * config.expansion, config.classes)
        for module in self.modules():  # torchvision's initialisation, which the narrow layers have not had
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, (resnet.BasicBlock, resnet.Bottleneck)):
                nn.init.zeros_((module.bn2 if config.expansion == 1 else module.bn3).weight)

    def stem(self, images: Tensor) -> Tensor:
        return self.maxpool(self.relu(self.bn1(self.conv1(images))))

    def embed(self, images: Tensor) -> Tensor:
        return images

    def parts(self) -> list[Part]:
        return [self.stem, *self.layer1, *self.layer2, *self.layer3, *self.layer4]

    def head(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Block(nn.Module):
    """Pre-norm decoder block: causal self-attention, then a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2: learned positions, and an output layer that shares the token embedding's weights."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(config.vocab, config.width), nn.Embedding(config.context, config.width)
        self.h = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width)
        residual = 0.02 / (2 * config.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0.0, residual if "proj" in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def embed(self, ids: Tensor) -> Tensor:
        return self.wte(ids) + self.wpe.weight[: ids.shape[1]]

    def parts(self) -> list[Part]:
        return list(self.h)

    def head(self, x: Tensor) -> Tensor:
        return F.linear(self.ln_f(x), self.wte.weight)


class Small(nn.Module):
    """A network of torchvision's as a single part. The dropout of MobileNets is off."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__()
        options = {"dropout": 0.0} if config.name.startswith("mobilenet") else {}
        self.network = torchvision.models.get_model(config.name, num_classes=config.classes, **options)

    def embed(self, images: Tensor) -> Tensor:
        return images

    def parts(self) -> list[Part]:
        return [self.network]

    def head(self, x: Tensor) -> Tensor:
        return x


def build(config: ResNetConfig | GptConfig | SmallConfig) -> ResNet | Gpt | Small:
    """The network on the CPU; its sizes must be those of the formula."""
    if isinstance(config, SmallConfig):
        return Small(config)
    model = ResNet(config) if isinstance(config, ResNetConfig) else Gpt(config)
    found = sizes_of(model)
    if found != config.sizes():
        raise AssertionError(f"{config} has {found} parameters and buffers, expected {config.sizes()}")
    return model


def sizes_of(model: nn.Module) -> tuple[int, int]:
    """Parameters, and floating-point elements of buffers."""
    buffers = sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point())
    return sum(parameter.numel() for parameter in model.parameters()), buffers


def segment_lengths(plan: str, parts: int) -> list[int]:
    """How many parts each recomputed segment has: none, all (each part alone), every:K or segments:N."""
    kind, _, number = plan.partition(":")
    if plan == "none":
        return []
    if plan == "all":
        return [1] * parts
    if kind in ("every", "segments") and number.isdecimal() and int(number) > 0:
        count = int(number)
        if kind == "every":
            return [min(count, parts - start) for start in range(0, parts, count)]
        count = min(count, parts)
        return [parts // count + (index < parts % count) for index in range(count)]
    raise ValueError(f"checkpoint plan '{plan}', expected none, all, every:K or segments:N")


def forward(model: ResNet | Gpt | Small, x: Tensor, plan: str = "none") -> Tensor:
    """Logits, with the chain's activations recomputed as `plan` says."""
    x, parts = model.embed(x), model.parts()
    lengths = segment_lengths(plan, len(parts))
    if not lengths:
        return model.head(run(parts, x))
    start = 0
    for length in lengths:
        x = checkpoint(run, parts[start : start + length], x, use_reentrant=False)
        start += length
    return model.head(x)


def run(parts: Sequence[Part], x: Tensor) -> Tensor:
    for part in parts:
        x = part(x)
    return x
