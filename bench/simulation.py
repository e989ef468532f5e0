"""How fast the simulator is: schedules of some 300 ticks of 4 prefill and 4 decode ranks in a minute of CPU."""

import time

from bench.rows import Row, row
from tandem.sim.case import four_by_four
from tandem.sim.run import run_case

TICKS = 300
BAR = ">= 300"


def measure(*, quick: bool, seed: int) -> list[Row]:
    """CPU time of this process, so other load on the machine counts only where it shares caches."""
    schedules = 5 if quick else 100
    ticks = requests = 0
    started_s = time.process_time()
    for each in range(seed, seed + schedules):
        result = run_case(four_by_four(each))
        ticks, requests = ticks + result.ticks, requests + result.requests
    minutes = (time.process_time() - started_s) / 60
    return [
        row("sim", f"schedules of {TICKS} ticks, P=4, D=4", ticks / TICKS / minutes, "1/CPU min", bar=BAR),
        row("sim", "ticks of one schedule", ticks / schedules, "ticks"),
        row("sim", "requests of one schedule", requests / schedules, "requests"),
    ]
