"""Predicts what each technique saves on three models, for a GPU that need not be there, and writes the table of docs/out-of-memory.md.

python benches/techniques.py [KILN]    KILN: the program, `kiln` by default. It takes half a minute, and no GPU.
"""

import json
import subprocess
import sys

KILN = sys.argv[1] if len(sys.argv) > 1 else "kiln"
ROOM = ["--memory", "80GiB", "--all", "--json", "--quiet"]
MODELS = {
    "GPT-2 124M": ["gpt", "--model", "gpt2", "--context", "1024", "--batch-size", "8"],
    "ResNet-50": ["classify", "--model", "resnet50", "--image-size", "224", "--batch-size", "64"],
    "ViT-B/16": ["classify", "--model", "vit_base", "--image-size", "224", "--batch-size", "64"],
}


def ways(arguments: list[str]) -> tuple[list[dict], int]:
    """The ways of a step, and its batch size."""
    plan = json.loads(subprocess.run([KILN, "plan", *arguments, *ROOM], check=True, capture_output=True).stdout)
    return plan["rows"], plan["batch"]


def one(rows: list[dict], **settings: object) -> dict:
    """The way with these settings, in everything else as the plain step in f32."""
    batch = max(row["micro_batch"] for row in rows)
    plain = {"checkpointing": "none", "micro_batch": batch, "optimizer_on_host": False, "precision": "f32"}
    wanted = plain | settings
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    state = next(row["optimizer"] for row in rows)  # the recipe's optimizer comes first
    return next(row for row in found if row["optimizer"] == settings.get("optimizer", state))


def main() -> None:
    table: dict[str, list[str]] = {}

    def add(name: str, row: dict, before: dict) -> None:
        gib, time = row["peak_bytes"] / 2**30, row["seconds"] / before["seconds"]
        table.setdefault(name, []).append(f"{gib:.2f} GiB, {time:.2f} x")

    for arguments in MODELS.values():
        rows, batch = ways(arguments)
        stock, _ = ways([*arguments, "--stock-layers"])
        plain = one(rows)
        eight = next(row["optimizer"] for row in rows if row["optimizer"].endswith("8bit"))
        add("burn's own layers", one(stock), plain)
        add("Kiln's layers, in f32, everything in memory", plain, plain)
        add("16 bits", one(rows, precision="bf16"), plain)
        add("micro-batches of a quarter", one(rows, micro_batch=batch // 4), plain)
        add("every block recomputed", one(rows, checkpointing="every:1"), plain)
        add("the same, inputs of blocks on the host", one(rows, checkpointing="offload"), plain)
        add("optimizer state in 8 bits", one(rows, optimizer=eight), plain)
        add("optimizer state on the host", one(rows, optimizer_on_host=True), plain)
        fewest = dict(precision="bf16", checkpointing="offload", optimizer=eight, micro_batch=batch // 4)
        add("16 bits, a quarter, inputs on the host, state in 8 bits", one(rows, **fewest), plain)
    print("| One step | " + " | ".join(MODELS) + " |\n|---|" + "---:|" * len(MODELS))
    for name, cells in table.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
