"""The model in one process without a cluster, as a process of its own: torch has one number of threads per process."""

import json
import random
import subprocess
import sys
import time

from bench.client import Timing
from tandem.core.config import Limits
from tandem.core.ids import LayerId, RequestId, Room
from tandem.core.requests import Sampling, Work, pages_for
from tandem.engine import solo
from tandem.engine.load import build_engine
from tandem.engine.model import read_shape

PAGE_SIZE = Limits().page_size


class Solo:
    """Speaks in lines of JSON with `python -m bench.solo MODEL THREADS TOKENS`."""

    def __init__(self, model: str, threads: int, most_tokens: int) -> None:
        self.name = f"one process, {threads} thread{'s' if threads > 1 else ''}"
        command = [sys.executable, "-P", "-m", "bench.solo", model, str(threads), str(most_tokens)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def complete(self, prompt: list[int], output: int) -> Timing:
        """The same work as `Client.complete`. Raises ConnectionError when the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([prompt, output]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise ConnectionError(f"{self.name} exited with status {self._process.wait()}")
        return Timing(*json.loads(line))

    def close(self) -> None:
        """It ends when its standard input does."""
        self._process.communicate()


def main(model: str, threads: int, most_tokens: int) -> None:
    """Answer lines until there are none."""
    shape = read_shape(model)
    layers = (LayerId(0), LayerId(shape.layers))
    pages = pages_for(most_tokens, PAGE_SIZE)
    engine = build_engine(shape, layers, page_size=PAGE_SIZE, num_pages=pages, threads=threads)
    for line in sys.stdin:
        prompt, output = json.loads(line)
        work = Work(Room(RequestId(random.getrandbits(63)), 1), tuple(prompt), output, (), Sampling(), None)
        start_s = time.perf_counter()
        times_s = [time.perf_counter() - start_s for _ in solo.generate(engine, work, page_size=PAGE_SIZE)]
        print(json.dumps([times_s[0], times_s[-1], len(times_s)]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
