"""Runs the peers that compare with Kiln on a CPU, in interleaved rounds, and writes what each run said.

    python benches/peers/measure.py --photos benches/peers/photos --out benches/results/peers-cpu.json
    python benches/peers/measure.py --table benches/results/peers-cpu.json

A round runs every case once, so that other work on the machine is spread over all of them. Cases whose memory
is what matters run in the first round alone. The table has medians.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parents[1] / "fixtures"
# With how often each is gone through, so that starting the workers is little beside it.
SETS = {"1mp": 6, "4mp": 3, "12mp": 2, "12mp-progressive": 1}
DECODERS = ("pil", "draft224", "draft448", "torchvision")
# As `xtask load --decode` calls them; with `turbo` when the program says so.
KILN = ("fast", "exact")


@dataclass(frozen=True)
class Case:
    group: str
    name: str
    command: tuple[str, ...]
    once: bool = False
    # libgomp's threads wait for each other in a busy loop, which takes the processor from whoever shares it.
    busy_wait: bool = False


def training() -> list[Case]:
    cases = []
    for model in ("resnet-small", "gpt-small"):
        two = ("train.py", "--model", model, "--steps", "20", "--threads", "2")
        one = (*two[:-1], "1", "--allocator-peak")
        micro = {"resnet-small": "16", "gpt-small": "2"}[model]
        cases += [
            Case("train", f"{model}, 1 thread", one),
            Case("train", f"{model}, 2 threads", two),
            Case("train", f"{model}, 2 threads, busy waits", two, once=True, busy_wait=True),
            Case("train", f"{model}, checkpoint all", (*one, "--checkpoint", "all"), once=True),
            Case("train", f"{model}, micro-batch {micro}", (*one, "--micro-batch", micro), once=True),
            Case("train", f"{model}, bf16", (*one, "--precision", "bf16"), once=True),
            Case("train", f"{model}, compiled", (*one[:-1], "--compile"), once=True),
        ]
    return cases


def loading(photos: Path) -> list[Case]:
    def load(*words: str | Path) -> tuple[str, ...]:
        return ("loader.py", *map(str, words))

    cases = [Case("packed", "Fashion-MNIST, batch 256, 2 workers", load("--packed", FIXTURES / "fashion-mnist"))]
    for name, epochs in SETS.items():
        for decoder in DECODERS:
            cases.append(Case(name, decoder, load(photos / name, "--decoder", decoder, "--epochs", str(epochs))))
    for workers in ("0", "1"):
        words = ("--epochs", "2", "--workers", workers)
        cases.append(Case("workers", f"12mp, pil, {workers} workers", load(photos / "12mp", *words)))
    for kind, decoders in (("jpeg", DECODERS), ("png", ("pil", "torchvision")), ("tiff", ("pil",))):
        for decoder in decoders:
            words = ("--only", kind, "--batch", "1", "--epochs", "1", "--workers", "0", "--decoder", decoder)
            cases.append(Case("memory", f"mixed {kind}, {decoder}", load(photos / "mixed", *words), once=True))
    for decoder in ("pil", "torchvision"):
        words = ("--epochs", "1", "--decoder", decoder, "--memory")
        cases.append(Case("memory", f"12mp, {decoder}, 2 workers", load(photos / "12mp", *words), once=True))
    return cases


def kiln_loading(program: Path, photos: Path | None) -> list[Case]:
    """The same sets through `xtask load`, the whole image to 224 x 224 as loader.py takes it."""

    def load(*words: str | Path) -> tuple[str, ...]:
        return (str(program.resolve()), "load", "--json", *map(str, words))

    packed = load(FIXTURES / "fashion-mnist", "--image-size", "28", "--batch-size", "256", "--epochs", "20")
    cases = [Case("packed", "Kiln, Fashion-MNIST, batch 256, 2 workers", packed)]
    if photos is None:
        return cases
    for name, epochs in SETS.items():
        for decode in KILN:
            words = (photos / name, "--decode", decode, "--epochs", str(epochs))
            cases.append(Case(name, f"kiln {decode}", load(*words)))
    for workers in ("1", "2"):
        words = (photos / "12mp", "--epochs", "2", "--workers", workers)
        cases.append(Case("workers", f"12mp, kiln fast, {workers} workers", load(*words)))
    for decode in KILN:
        words = (photos / "mixed", "--decode", decode, "--loader-memory", "256MiB", "--batch-size", "4")
        cases.append(Case("memory", f"mixed, kiln {decode}, 256 MiB", load(*words), once=True))
    return cases


def run(case: Case, round_number: int) -> dict[str, Any]:
    environment = dict(os.environ)
    environment.pop("OMP_WAIT_POLICY", None)
    if not case.busy_wait:
        environment["OMP_WAIT_POLICY"] = "passive"
    program, *words = case.command
    command = [sys.executable, str(HERE / program), *words] if program.endswith(".py") else [program, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"measure.py: {case.group}, {case.name} failed: {done.stderr.strip()}")
    result = json.loads(done.stdout.splitlines()[-1])
    origin = {"date": datetime.date.today().isoformat(), "revision": revision(), "load": round(os.getloadavg()[0], 1)}
    return {"group": case.group, "case": case.name, "round": round_number, **origin, "result": result}


def revision() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure(cases: list[Case], rounds: int, out: Path) -> None:
    """Writes one run a line, after every round; runs of other cases that the file has are kept."""
    measured = {(case.group, case.name) for case in cases}
    runs = [one for one in read(out) if (one["group"], one["case"]) not in measured] if out.is_file() else []
    for number in range(1, rounds + 1):
        for case in cases:
            if number == 1 or not case.once:
                runs.append(run(case, number))
                print(f"round {number}: {case.group}, {case.name}", file=sys.stderr, flush=True)
        out.write_text("".join(json.dumps(one) + "\n" for one in runs))


def median(runs: list[dict[str, Any]], group: str, name: str, *path: str) -> float | None:
    values = []
    for one in runs:
        if (one["group"], one["case"]) == (group, name):
            value: Any = one["result"]
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                values.append(value)
    return statistics.median(values) if values else None


def table(path: Path) -> None:
    runs = read(path)
    names: dict[str, list[str]] = {}
    for one in runs:
        cases = names.setdefault(one["group"], [])
        if one["case"] not in cases:
            cases.append(one["case"])

    def shown(value: float | None, scale: float = 1.0) -> str:
        return "" if value is None else f"{value * scale:.1f}"

    mib = 1 / (1 << 20)
    if "train" in names:
        print("| Training step | ms | processor ms | tensors, MiB | RSS above start, MiB |\n|---|---|---|---|---|")
        for name in names["train"]:
            of = lambda *keys: median(runs, "train", name, *keys)
            memory = [shown(of("peak_bytes", key), mib) for key in ("tensors", "rss_above_start")]
            times = [shown(of(key, "median")) for key in ("step_ms", "processor_ms")]
            print(f"| {' | '.join([name, *times, *memory])} |")
        print()
    for what in ("images_per_cpu_s", "images_per_s"):
        sets = [name for name in SETS if name in names]
        if sets:
            print(f"| {what.replace('_', ' ')} | {' | '.join(sets)} |\n|---{'|---' * len(sets)}|")
            for decoder in (*DECODERS, *(f"kiln {decode}" for decode in KILN)):
                cells = []
                for name in sets:
                    path_of = (what,) if what.endswith("cpu_s") else (what, "median")
                    value, base = (median(runs, name, case, *path_of) for case in (decoder, "pil"))
                    cells.append("" if value is None or not base else f"{value:.1f} ({value / base:.2f})")
                print(f"| {decoder} | {' | '.join(cells)} |")
            print()
    for group in ("packed", "workers"):
        for name in names.get(group, []):
            rate = shown(median(runs, group, name, "images_per_s", "median"))
            print(
                f"{name}: {rate} images/s, {shown(median(runs, group, name, 'images_per_cpu_s'))} images per CPU-second"
            )
    for name in names.get("memory", []):
        peaks = [median(runs, "memory", name, "peak_bytes", f"{kind}_above_start") for kind in ("rss", "pss")]
        print(f"{name}: {shown(peaks[0] or peaks[1], mib)} MiB above start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="what photos.py made; without it only training and packed images")
    parser.add_argument("--kiln", type=Path, metavar="PROGRAM", help="Kiln's xtask, to be measured in the same rounds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="TEXT", help="cases whose group or name has this in it")
    parser.add_argument("--out", type=Path, help="file of the results; other cases in it are kept")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="print the medians of a file of results, measure nothing"
    )
    args = parser.parse_args()
    if (args.out is None) == (args.table is None):
        parser.error("expected either --out FILE or --table FILE")
    if args.table:
        if not args.table.is_file():
            parser.error(f"--table '{args.table}' is no file")
        table(args.table)
        return
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}, expected at least 1")
    if args.photos and not all((args.photos / name).is_dir() for name in (*SETS, "mixed")):
        parser.error(f"--photos '{args.photos}' lacks a set of photos.py's, expected {', '.join((*SETS, 'mixed'))}")
    cases = training() + [c for c in loading(args.photos or Path()) if args.photos or c.group == "packed"]
    if args.kiln:
        if not os.access(args.kiln, os.X_OK) or args.kiln.is_dir():
            parser.error(f"--kiln '{args.kiln}' is no program, expected target/release/xtask or the like")
        cases += kiln_loading(args.kiln, args.photos)
    if args.only:
        cases = [case for case in cases if args.only in case.group or args.only in case.name]
    if not cases:
        parser.error(f"--only '{args.only}' names no case")
    if not args.out.parent.is_dir():
        parser.error(f"--out '{args.out}': no such directory")
    measure(cases, args.rounds, args.out)


if __name__ == "__main__":
    main()
