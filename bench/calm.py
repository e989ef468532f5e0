"""Waiting until the machine has come to rest: threads of some engines spin for a second after their last answer."""

import time
from pathlib import Path

LOOK_S = 0.05
BUSY = 0.2
"""Cores; less is rest."""
PATIENCE_S = 3.0
"""Beside other work there is no rest to wait for."""


def come_to_rest() -> None:
    """Until all cores together do next to nothing, or the patience is over."""
    end_s = time.monotonic() + PATIENCE_S
    before, at_s = busy_s(), time.monotonic()
    while at_s < end_s:
        time.sleep(LOOK_S)
        now, now_s = busy_s(), time.monotonic()
        if now - before < BUSY * (now_s - at_s):
            return
        before, at_s = now, now_s


def busy_s() -> float:
    """Seconds that the cores have worked since the machine was started, by the kernel's ticks of 10 ms."""
    user, nice, system, _idle, _waits, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft) / 100
