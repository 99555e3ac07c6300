"""Single layers in PyTorch, forward and backward, for `cargo bench --package benches --bench layers`.

Reads the name of a case on each line of stdin, runs it once and prints one line of JSON: seconds of the forward and the backward pass
together, and the bytes of the output and of what autograd saved beside the inputs. Ends with its input.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Case = tuple[list[Tensor], Callable[..., Tensor]]


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype).requires_grad_()


def attention(batch: int, heads: int, time: int, depth: int, dtype: torch.dtype) -> Case:
    width = heads * depth

    def run(qkv: Tensor) -> Tensor:
        parts = qkv.view(batch, time, 3, heads, depth).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return y.transpose(1, 2).reshape(batch, time, width)

    return [leaf(batch, time, 3 * width, dtype=dtype)], run


def loss(rows: int, width: int, classes: int, dtype: torch.dtype) -> Case:
    targets = torch.randint(classes, (rows,), generator=GENERATOR)
    inputs = [leaf(rows, width, dtype=dtype), leaf(classes, width, dtype=dtype)]
    return inputs, lambda x, w: F.cross_entropy((x @ w.T).float(), targets)


def convolution(batch: int, channels: int, size: int, out: int, kernel: int, stride: int, dtype: torch.dtype) -> Case:
    inputs = [leaf(batch, channels, size, size, dtype=dtype), leaf(out, channels, kernel, kernel, dtype=dtype)]
    return inputs, lambda x, w: F.conv2d(x, w, stride=stride, padding=kernel // 2)


def depthwise(batch: int, channels: int, size: int, dtype: torch.dtype) -> Case:
    inputs = [leaf(batch, channels, size, size, dtype=dtype), leaf(channels, 1, 3, 3, dtype=dtype)]
    return inputs, lambda x, w: F.conv2d(x, w, padding=1, groups=channels)


def feed_forward(rows: int, width: int, dtype: torch.dtype) -> Case:
    inputs = [
        leaf(rows, width, dtype=dtype),
        leaf(width, dtype=dtype), leaf(width, dtype=dtype),
        leaf(4 * width, width, dtype=dtype), leaf(4 * width, dtype=dtype),
        leaf(width, 4 * width, dtype=dtype), leaf(width, dtype=dtype),
    ]

    def run(x, weight, bias, up, up_bias, down, down_bias):
        h = F.linear(F.layer_norm(x, (width,), weight, bias), up, up_bias)
        return F.linear(F.gelu(h, approximate="tanh"), down, down_bias)

    return inputs, run


def cases(name: str, dtype: torch.dtype) -> Case:
    x = lambda *shape: leaf(*shape, dtype=dtype)  # noqa: E731
    elementwise = {
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "softmax": lambda x: F.softmax(x, -1),
    }
    if name in elementwise:
        return [x(4096, 1024)], elementwise[name]
    if name == "layer_norm":
        return [x(4096, 768), x(768), x(768)], lambda x, w, b: F.layer_norm(x, (768,), w, b)
    if name == "batch_norm_relu":
        inputs = [x(32, 64, 56, 56), leaf(64), leaf(64)]
        return inputs, lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True), inplace=True)
    if name == "max_pool2d":
        return [x(32, 64, 56, 56)], lambda x: F.max_pool2d(x, 3, 2, 1)
    kind, *sizes = name.split(":")
    builders = {
        "attention": attention, "loss": loss, "conv2d": convolution, "depthwise": depthwise,
        "feed_forward": feed_forward,
    }
    return builders[kind](*map(int, sizes), dtype)


def once(inputs: list[Tensor], run: Callable[..., Tensor]) -> dict[str, float]:
    known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    for tensor in inputs:
        tensor.grad = None
    started = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = run(*inputs)
    kept[y.untyped_storage().data_ptr()] = y.untyped_storage().nbytes()
    y.backward(torch.ones_like(y))
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "kept_bytes": sum(kept.values())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of an operation")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    GENERATOR = torch.Generator().manual_seed(1)
    print(json.dumps({"torch": torch.__version__, "threads": arguments.threads}), flush=True)
    known: dict[str, Case] = {}
    for line in sys.stdin:
        name, dtype = line.split()
        if line not in known:
            known.clear()
            known[line] = cases(name, getattr(torch, dtype))
        print(json.dumps(once(*known[line])), flush=True)
