#!/usr/bin/env python3
"""Compares the events that Kiln writes for TensorBoard with TensorBoard itself.

    python3 -m venv venv && venv/bin/pip install tensorboard
    venv/bin/python scripts/check_tensorboard.py record crates/kiln-runs/tests/fixtures/events.tfevents
    venv/bin/python scripts/check_tensorboard.py check runs/gpt-001

`record` writes the events of the unit test in crates/kiln-runs/src/metrics/tfrecord.rs with TensorBoard's own writer.
`check` reads the events of a run as TensorBoard does, and compares them with the run's metrics.jsonl and metrics.csv.
"""

import csv
import json
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


def record(path):
    value = Summary.Value
    events = [
        Event(wall_time=1_700_000_000.25, file_version="brain.Event:2"),
        Event(wall_time=1_700_000_001.0, step=300, session_log=SessionLog(status=SessionLog.START)),
        Event(
            wall_time=1_700_000_002.5,
            step=300,
            summary=Summary(
                value=[
                    value(tag="train/loss", simple_value=2.5),
                    value(tag="train/learning_rate", simple_value=1e-4),
                ]
            ),
        ),
        Event(
            wall_time=1_700_000_003.5,
            step=70_000,
            summary=Summary(value=[value(tag="test/accuracy", simple_value=0.8125)]),
        ),
    ]
    with open(path, "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString(deterministic=True))
        writer.flush()


def expected(lines):
    """Points of each tag as the lines of metrics have them."""
    points = {}
    for line in lines:
        if line["kind"] == "step" and not line.get("skipped"):
            names = {f"train/{name}": name for name in ("loss", "learning_rate", "gradient_norm")}
        elif line["kind"] == "evaluation":
            figures = [name for name in line if name not in ("kind", "step", "epochs")]
            names = {f"test/{name.removeprefix('test_')}": name for name in figures}
        else:
            names = {}
        for tag, name in names.items():
            if line.get(name) is not None:
                single = struct.unpack("f", struct.pack("f", line[name]))[0]
                points.setdefault(tag, []).append((line["step"], single))
    return points


def check(run):
    run = Path(run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    accumulator = event_accumulator.EventAccumulator(str(run), size_guidance={event_accumulator.SCALARS: 0})
    accumulator.Reload()
    found = {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
    wanted = expected(lines)
    assert found.keys() == wanted.keys(), (sorted(found), sorted(wanted))
    for tag, points in wanted.items():
        assert found[tag] == points, f"{tag}: {len(found[tag])} points, expected {len(points)}"
    with open(run / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(lines), f"metrics.csv has {len(rows)} rows, expected {len(lines)}"
    for row, line in zip(rows, lines):
        for name, text in row.items():
            value = line.get(name)
            same = text == "" if value is None else value == text if isinstance(value, str) else json.loads(text) == value
            assert same, f"step {line['step']}: {name} is {text!r} in metrics.csv, expected {value!r}"
    files = len(list(run.glob("events.out.tfevents.*")))
    print(f"{run}: {sum(map(len, wanted.values()))} points of {len(wanted)} tags in {files} files, {len(rows)} rows: the same")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", path]:
            record(path)
        case ["check", *runs] if runs:
            for run in runs:
                check(run)
        case _:
            sys.exit(__doc__)
