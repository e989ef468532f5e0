"""What the processes of `bench.engine` have in common. It imports nothing of ours: foreign environments run it."""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Protocol

FIRST_ID, LAST_ID = 100, 49_000  # of made-up prompts: no special tokens
WARM = 4  # steps of decode that are not counted
READY = "READY "

ANSWERS = os.fdopen(os.dup(sys.stdout.fileno()), "w")
"""Kept apart: what is measured may print, and so may the processes that it starts."""
os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


class Measured(Protocol):
    """Something that computes the bundled model; all answers are in seconds."""

    def prefill(self, tokens: int) -> float:
        """Until the first token of a prompt."""
        ...

    def decode(self, batch: int, context: int, steps: int) -> float:
        """So many steps of a batch whose texts have so many tokens."""
        ...

    def serve(self, requests: int, tokens: int, output: int) -> float:
        """Until all requests, there from the start, have all of their tokens."""
        ...


def serve_lines(measured: Measured) -> None:
    """Answer lines such as `["decode", 8, 540, 16]` until there are none."""
    print(READY, file=ANSWERS, flush=True)
    for line in sys.stdin:
        case, *numbers = json.loads(line)
        print(json.dumps(getattr(measured, case)(*numbers)), file=ANSWERS, flush=True)


def made_up(count: int) -> list[int]:
    """A prompt."""
    return [random.randrange(FIRST_ID, LAST_ID) for _ in range(count)]


def seconds(work: Callable[[], object]) -> float:
    """That it takes."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s
