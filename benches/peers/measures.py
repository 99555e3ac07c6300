"""Memory, processor time and machine, as the peers report them. Linux."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import Any, Callable

MIB = 1 << 20


def status(field: str, pid: int | str = "self") -> int:
    """A field of /proc/PID/status, in bytes; 0 when there is none (any more)."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def reset_peak_rss() -> bool:
    """Has VmHWM start again from what is resident now; false where the kernel does not offer it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return True
    except OSError:
        return False


def cpu_seconds() -> float:
    """User and system time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def allocator_peak(work: Callable[[], Any]) -> int:
    """Most bytes that torch's CPU allocator had given out at a time during `work`, above those before it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    live = peak = 0
    for event in events:
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def spread(values: list[float]) -> dict[str, float]:
    """Median, quartiles and extremes, three decimals."""
    ordered = sorted(values)
    at = lambda part: ordered[min(int(part * len(ordered)), len(ordered) - 1)]
    named = {"median": at(0.5), "p25": at(0.25), "p75": at(0.75), "min": ordered[0], "max": ordered[-1]}
    return {name: round(value, 3) for name, value in named.items()}


def bytes_of(text: str) -> int:
    """Reads 1024, 300MiB or 1.5GiB."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    number, unit = (text[:-3], units[text[-3:]]) if text[-3:] in units else (text, 1)
    try:
        value = int(float(number) * unit)
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise ValueError(f"'{text}' bytes, expected a number, or one with KiB, MiB or GiB")
    return value


def machine() -> dict[str, Any]:
    return {"processor": processor(), "cpus": os.cpu_count(), "python": platform.python_version()}
