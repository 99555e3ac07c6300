"""Checks that the peers are Kiln's networks: their sizes, and what the recorded references in fixtures/ compute.

    python benches/peers/check.py
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import replace
from pathlib import Path

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
    from models import CONFIGS, GptConfig, ResNetConfig, build, forward
except (ImportError, OSError, ValueError) as error:
    sys.exit(f"check.py needs torch and torchvision (pip install -r benches/peers/requirements.txt): {error}")

REFERENCE = Path(__file__).resolve().parents[2] / "fixtures" / "reference"

# Parameters and running statistics, by crates/kiln-models/tests/errors.rs.
FULL = {
    "resnet18": (11_689_512, 9_600),
    "resnet34": (21_797_672, 17_024),
    "resnet50": (25_557_032, 53_120),
    "resnet101": (44_549_160, 105_344),
    "gpt2-124m": (124_439_808, 0),
    "gpt2-medium": (354_823_168, 0),
}
RENAMED = {"attn.c_attn": "c_attn", "attn.c_proj": "attn_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj"}
# Their sum, as `cargo xtask train` prints it.
PRINTED = {"resnet-small": 704_218, "gpt-small": 834_304}


def read(name: str) -> dict[str, Tensor]:
    """A safetensors file of f32 and i64: eight bytes of length, a JSON header, the data."""
    data = bytearray((REFERENCE / f"{name}.safetensors").read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    dtypes = {"F32": torch.float32, "I64": torch.int64}
    tensors = {}
    for key, entry in header.items():
        if key != "__metadata__":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            dtype = dtypes[entry["dtype"]]
            flat = torch.frombuffer(bytearray(data[start:end]), dtype=dtype)
            tensors[key] = flat.reshape(entry["shape"])
    return tensors


def peer_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face's names and transposed weights as the peer's decoder has them."""
    renamed = {}
    for key, tensor in state.items():
        key = key.removeprefix("transformer.")
        if ".c_" in key and key.endswith("weight"):
            tensor = tensor.t().contiguous()
        for old, new in RENAMED.items():
            key = key.replace(old, new)
        renamed[key] = tensor
    return renamed


def distance(what: str, got: Tensor, expected: Tensor) -> float:
    """The largest difference, over the largest value."""
    off = ((got - expected).abs().max() / expected.abs().max()).item()
    if not off <= 1e-4:
        sys.exit(f"{what}: off by {off:.1e} of the largest value, expected at most 1e-4")
    return off


def compare(name: str, config: ResNetConfig | GptConfig) -> None:
    """Logits and loss in training mode, plain and recomputed."""
    state, expected = read(name), read(f"{name}.expected")
    for plan in ("none", "all", "segments:2"):
        model = build(config)
        gpt = isinstance(config, GptConfig)
        missing = model.load_state_dict(peer_names(state) if gpt else state, strict=False).missing_keys
        if missing and any("num_batches" not in key for key in missing):
            sys.exit(f"{name}: the reference has no {missing}")
        inputs = expected["input"]
        logits = forward(model, inputs, plan)
        worst = distance(f"{name}, {plan}: logits", logits, expected["logits_train"])
        targets = inputs[:, 1:].reshape(-1) if gpt else torch.tensor([3, 1, 4, 1])
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1) if gpt else logits, targets)
        worst = max(worst, distance(f"{name}, {plan}: loss", loss, expected["loss"]))
        loss.backward()
        key = "wte.weight" if gpt else "conv1.weight"
        norm = dict(model.named_parameters())[key].grad.norm()
        recorded = expected[f"grad_norm.{'transformer.' if gpt else ''}{key}"]
        worst = max(worst, distance(f"{name}, {plan}: gradient of {key}", norm, recorded))
        print(f"{name}, checkpoint {plan}: logits, loss and gradient of {key} agree to {worst:.0e}")


def main() -> None:
    if len(sys.argv) > 1:
        print(__doc__)
        if sys.argv[1] in ("-h", "--help"):
            return
        sys.exit(f"check.py: unexpected '{sys.argv[1]}', expected no argument")
    if not REFERENCE.is_dir():
        sys.exit(f"check.py: no '{REFERENCE}', expected the project's fixtures")
    for name, config in CONFIGS.items():
        found = config.sizes()
        if found != FULL.get(name, found) or sum(found) != PRINTED.get(name, sum(found)):
            sys.exit(f"{name}: {found}, expected {FULL.get(name, PRINTED.get(name))}")
        if found[0] < 50_000_000:
            build(config)  # counts what is built
        print(f"{name}: {found[0]:,} parameters, {found[1]:,} running statistics")
    compare("resnet18", replace(CONFIGS["resnet18"], classes=10, width=8))
    compare("resnet18-cifar", replace(CONFIGS["resnet18"], classes=10, width=4, stem="cifar"))
    compare("resnet50", replace(CONFIGS["resnet50"], classes=10, width=4))
    compare("gpt2", GptConfig(3, 4, 32, vocab=97, context=24))


if __name__ == "__main__":
    main()
