"""Generation in one process, without a cluster: `tandem generate`, and the P = 1 reference of the tests."""

from collections.abc import Iterator, Sequence

from tandem.core.ids import NO_SLOT, PageId, Tick
from tandem.core.plan import Plan, Row
from tandem.core.requests import Work, ending, pages_for
from tandem.ports import Engine


def generate(
    engine: Engine, work: Work, *, page_size: int, chunk: int = 512, pages: Sequence[PageId] | None = None
) -> Iterator[int]:
    """The tokens of one request, the stop id included, as they are computed.

    `engine` computes all layers. `chunk` is in tokens of the prompt per run; `pages` is the page table, by default
    the first of the pool. Raises ValueError when there are too few pages or no prompt.
    """
    needed = pages_for(work.last_position, page_size)
    table = tuple(PageId(page) for page in range(needed)) if pages is None else tuple(pages)
    if needed > min(len(table), engine.memory.region.num_pages):
        raise ValueError(f"{work.last_position} tokens need {needed} pages, there are {len(table)}")
    if not work.prompt:
        raise ValueError("the prompt is empty")
    tokens, start, generated, tick = work.prompt, 0, 0, 0
    while True:
        part = tokens[:chunk]
        tokens = tokens[chunk:]
        used = table[: pages_for(start + len(part), page_size)]
        row = Row(work.room, part, start, used, not tokens, work.sampling)
        plan = Plan(Tick(tick), NO_SLOT, (row,), (), (), 0)
        sampled = engine.run(plan, None, _ignore)
        start, tick = row.end, tick + 1
        if tokens:
            continue
        assert isinstance(sampled, tuple), "the engine lacks the last layers"
        ((token,),) = sampled
        generated += 1
        yield token
        if ending(work, generated, token) is not None:
            return
        tokens = (token,)


def _ignore(_: int) -> None:
    """Nobody waits for the layers."""
