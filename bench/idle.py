"""What a cluster costs while nobody asks it anything, and what idleness adds to the next request."""

import os
import random
import statistics
import time
from pathlib import Path

import msgspec

from bench.rows import Row, row
from bench.streams import made_up, together

BENCH = "e2e"
SHORT = 16
"""Tokens of the prompt where only the way to the first token counts."""


def idle_cpu(name: str, pid: int, seconds: float) -> Row:
    """Cores that a process and all its children use meanwhile."""
    before_s, start_s = family_cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    used_s, passed_s = family_cpu_s(pid) - before_s, time.monotonic() - start_s
    return row(BENCH, f"{name}: idle_cpu", used_s / passed_s, "cores", bar="< 0.02")


def idle_wake(name: str, url: str, model: str, repeats: int, idle_s: float) -> Row:
    """What idleness adds to the time to the first token, against requests back to back."""
    rng = random.Random(0)

    def first_ms() -> float:
        (stream,) = together(url, model, [made_up(rng, 1000, SHORT)], 1)
        return stream.first_s * 1000

    rested, busy = [], []
    for _ in range(repeats):
        first_ms()
        busy.append(first_ms())
        time.sleep(idle_s)
        rested.append(first_ms())
    added_ms = statistics.median(rested) - statistics.median(busy)
    found = row(BENCH, f"{name}: idle_wake", added_ms, "ms", bar="<= 20 ms")
    return msgspec.structs.replace(found, reference="back to back", reference_value=statistics.median(busy))


def family_cpu_s(pid: int) -> float:
    """Seconds of CPU time of a process and all its descendants that live."""
    return sum(map(cpu_s, family(pid)))


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def cpu_s(pid: int) -> float:
    """utime + stime, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
