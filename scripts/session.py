#!/usr/bin/env python3
"""Records a terminal session as a picture: runs each command in an empty directory and draws what it prints.

    scripts/session.py docs/pictures/session.svg            # with `kiln` from the PATH
    KILN=target/debug/kiln scripts/session.py OUT.svg       # with another program

It needs nothing but Python. The output is drawn as it is; longer lines than COLUMNS continue indented.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

COLUMNS = 104
COMMANDS = [
    "kiln plan gpt --model gpt2 --batch-size 32 --memory 4GiB",
    "kiln train resnet --batch-size 4096 --memory 100MiB --max-steps 3",
    "kiln runs",
]
WIDTH, LINE, LEFT, TOP = 8.0, 18, 16, 44


def run(command: str, folder: str) -> list[str]:
    words = shlex.split(command)
    # The program prints commands with the name that it was called by: `kiln`, wherever it is.
    program = os.path.abspath(os.environ["KILN"]) if words[0] == "kiln" and "KILN" in os.environ else None
    environment = os.environ | {"COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    done = subprocess.run(
        words, executable=program, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout.rstrip().splitlines()


def wrapped(line: str) -> list[str]:
    lines = []
    while len(line) > COLUMNS:
        # Break before a word; a word that is longer than a line is cut.
        at = line.rfind(" ", 1, COLUMNS + 1)
        at = at if at > 0 else COLUMNS
        lines.append(line[:at])
        line = "     " + line[at:].lstrip()
    return lines + [line]


def spans(line: str) -> str:
    for level, name in ((" INFO ", "info"), (" WARN ", "warn")):
        if line.startswith(level):
            return f'<tspan class="{name}">{level}</tspan>{escape(line[len(level):])}'
    name = "prompt" if line.startswith("$ ") else "chosen" if line.startswith("> ") else ""
    return f'<tspan class="{name}">{escape(line)}</tspan>' if name else escape(line)


def picture(lines: list[str]) -> str:
    width, height = int(2 * LEFT + COLUMNS * WIDTH), TOP + LINE * len(lines) + 8
    rows = "\n".join(
        f'<text x="{LEFT}" y="{TOP + LINE * row}" textLength="{len(line) * WIDTH:g}" xml:space="preserve">{spans(line)}</text>'
        for row, line in enumerate(lines)
        if line.strip()
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>A terminal session with Kiln</title>
<style>text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d8dee9;white-space:pre}}
.prompt{{fill:#88c0d0;font-weight:700}}.info{{fill:#a3be8c}}.warn{{fill:#ebcb8b}}.chosen{{fill:#fff;font-weight:700}}</style>
<rect width="{width}" height="{height}" rx="8" fill="#242933"/>
<circle cx="18" cy="16" r="5" fill="#bf616a"/><circle cx="36" cy="16" r="5" fill="#ebcb8b"/><circle cx="54" cy="16" r="5" fill="#a3be8c"/>
{rows}
</svg>
"""


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            lines += [""] if lines else []
            lines += wrapped(f"$ {command}")
            for line in run(command, folder):
                lines += wrapped(line)
    out = Path(sys.argv[1])
    part = out.with_suffix(".part")
    part.write_text(picture(lines))
    part.replace(out)


main()
