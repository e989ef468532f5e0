"""Generation in one process, without a cluster: `tandem generate`, and the P = 1 reference of the tests."""

from collections.abc import Iterator, Sequence

from tandem.core.errors import ConfigError
from tandem.core.ids import NO_SLOT, PageId, Tick
from tandem.core.plan import NO_HISTORY, Plan, Row, history
from tandem.core.requests import Work, ending, pages_for
from tandem.ports import Engine, Sampled


def generate(
    engine: Engine, work: Work, *, page_size: int, chunk: int = 512, pages: Sequence[PageId] | None = None
) -> Iterator[int]:
    """The tokens of one request, the stop id included, as they are computed.

    `engine` computes all layers. `chunk` is in tokens of the prompt per run; `pages` is the page table, by default
    the first of the pool. Raises ValueError when there are too few pages or no prompt, ConfigError when
    the model's logits are no numbers.
    """
    needed = pages_for(work.last_position, page_size)
    table = tuple(PageId(page) for page in range(needed)) if pages is None else tuple(pages)
    if needed > min(len(table), engine.memory.region.num_pages):
        raise ValueError(f"{work.last_position} tokens need {needed} pages, there are {len(table)}")
    if not work.prompt:
        raise ValueError("the prompt is empty")
    tokens, start, tick = work.prompt, 0, 0
    answer: list[int] = []
    while True:
        part = tokens[:chunk]
        tokens = tokens[chunk:]
        used = table[: pages_for(start + len(part), page_size)]
        past = history(work, answer) if not tokens else NO_HISTORY
        row = Row(work.room, part, start, used, not tokens, work.sampling, *past)
        plan = Plan(Tick(tick), NO_SLOT, (row,), (), (), 0)
        sampled = engine.run(plan, None, _ignore)
        start, tick = row.end, tick + 1
        if tokens:
            continue
        assert isinstance(sampled, Sampled), "the engine lacks the last layers"
        (drawn,) = sampled.tokens
        if not drawn:
            raise ConfigError(f"the model computes no numbers for token {len(answer)}: are its weights damaged?")
        (token,) = drawn
        answer.append(token)
        yield token
        if ending(work, len(answer), token) is not None:
            return
        tokens = (token,)


def _ignore(_: int) -> None:
    """Nobody waits for the layers."""
