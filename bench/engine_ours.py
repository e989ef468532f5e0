"""One of our engines in a process of its own, for `bench.engine`, with the simplest batcher there is."""

import random
import sys
from collections.abc import Callable, Sequence

from bench.engine_cases import WARM, made_up, seconds, serve_lines
from tandem.core.config import EngineName
from tandem.core.ids import NO_SLOT, LayerId, PageId, RequestId, Room, Tick
from tandem.core.plan import Plan, Row
from tandem.core.requests import Sampling, pages_for
from tandem.engine.load import build_engine
from tandem.engine.model import read_shape
from tandem.ports import Sampled

PAGE = 16
CHUNK = 2048  # tokens of one plan of the simple batcher


class Ours:
    """Plans by hand: every running request gets its next token, and what is left of a plan is filled with prompts."""

    def __init__(self, name: EngineName, model: str, threads: int, pages: int) -> None:
        shape = read_shape(model)
        layers = LayerId(0), LayerId(shape.layers)
        self._engine = build_engine(
            shape, layers, page_size=PAGE, num_pages=pages, engine=name, dtype="bfloat16", threads=threads
        )
        self._pages = random.Random(1).sample(range(pages), pages)

    def prefill(self, tokens: int) -> float:
        """Seconds until the first token of a prompt."""
        return seconds(lambda: self._run([self._row(made_up(tokens), 0, self._table(0, tokens))]))

    def decode(self, batch: int, context: int, steps: int) -> float:
        """Seconds of so many steps of a batch; the tokens before are whatever lies in the cache."""
        return self._steps(self._run, batch, context, steps)

    def forward(self, batch: int, context: int, steps: int) -> float:
        """The same without sampling. Of engines that have no such call it is the same."""
        logits = getattr(self._engine, "logits", None)
        return self._steps(self._run if logits is None else lambda rows: logits(plan(rows)), batch, context, steps)

    def _steps(self, run: Callable[[Sequence[Row]], object], batch: int, context: int, steps: int) -> float:
        tables = [self._table(row, context + steps + WARM) for row in range(batch)]

        def decode(first: int, count: int) -> None:
            for at in range(first, first + count):
                run([self._row(made_up(1), context + at, table) for table in tables])

        decode(0, WARM)
        return seconds(lambda: decode(WARM, steps))

    def serve(self, requests: int, tokens: int, output: int) -> float:
        """Seconds until all requests, there from the start, have all of their tokens."""
        prompts = [made_up(tokens) for _ in range(requests)]
        tables = [self._table(row, tokens + output) for row in range(requests)]
        return seconds(lambda: self._serve(prompts, tables, output))

    def _serve(self, prompts: Sequence[Sequence[int]], tables: Sequence[Sequence[int]], output: int) -> None:
        done = [0] * len(prompts)
        answers: list[list[int]] = [[] for _ in prompts]
        while any(len(answer) < output for answer in answers):
            left, rows, who = CHUNK, [], []
            for at, answer in enumerate(answers):
                if answer and len(answer) < output:
                    rows.append(self._row(answer[-1:], len(prompts[at]) + len(answer) - 1, tables[at]))
                    who.append(at)
                    left -= 1
            for at, prompt in enumerate(prompts):
                part = prompt[done[at] : done[at] + left]
                if part:
                    last = done[at] + len(part) == len(prompt)
                    rows.append(self._row(part, done[at], tables[at], samples=last))
                    done[at] += len(part)
                    left -= len(part)
                    who += [at] * last
            for at, (token,) in zip(who, self._run(rows).tokens, strict=True):
                answers[at].append(token)

    def _table(self, row: int, tokens: int) -> list[int]:
        count = pages_for(tokens, PAGE)
        return self._pages[row * count : (row + 1) * count]

    def _row(self, tokens: Sequence[int], start: int, table: Sequence[int], *, samples: bool = True) -> Row:
        pages = tuple(PageId(page) for page in table[: pages_for(start + len(tokens), PAGE)])
        return Row(Room(RequestId(1), 1), tuple(tokens), start, pages, samples, Sampling())

    def _run(self, rows: Sequence[Row]) -> Sampled:
        found = self._engine.run(plan(rows), None, lambda _: None)
        assert isinstance(found, Sampled), "the engine has all layers"
        return found


def plan(rows: Sequence[Row]) -> Plan:
    """Of one tick."""
    return Plan(Tick(0), NO_SLOT, tuple(rows), (), (), 0)


if __name__ == "__main__":
    serve_lines(Ours(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))  # type: ignore[arg-type]
