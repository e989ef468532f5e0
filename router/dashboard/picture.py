"""One request as the page draws it: the lines of `tandem trace`, with the router's own wait in front."""

from collections.abc import Sequence

import msgspec

from router.membership import Watched
from router.recalled import Recalled
from router.transfers import detail
from tandem.runtime.history import Attempt
from tandem.waterfall import COMMIT, FAULT, LANDED, MOMENT, POST, QUEUE, RUN, WAIT, WIRE, Line, lines_of, window_of

KINDS = {
    WAIT: "wait",
    RUN: "run",
    QUEUE: "queue",
    POST: "post",
    WIRE: "wire",
    COMMIT: "commit",
    LANDED: "landed",
    MOMENT: "moment",
    FAULT: "fault",
}
"""What a glyph in the terminal is called on the page."""


class Bar(msgspec.Struct):
    """Microseconds since the attempt began."""

    kind: str
    from_us: int
    to_us: int


class Row(msgspec.Struct):
    """One line."""

    label: str
    note: str
    bars: list[Bar]


class Drawing(msgspec.Struct):
    """One attempt. The axis shows from `from_us` to `to_us`; what is outside is cut."""

    attempt: int
    groups: dict[str, str]
    state: str
    reason: str
    prompt_tokens: int
    tokens: int | None
    began_us: int
    from_us: int
    to_us: int
    rows: list[Row]
    dropped: int


class Picture(msgspec.Struct):
    """GET /dashboard/requests/ID: all attempts, and which ranks did not answer, with why."""

    id: str
    waited_ms: float
    drawings: list[Drawing]
    silent: dict[str, str]


async def picture(groups: Sequence[Watched], text: str, scale: float, recalled: Recalled) -> Picture:
    """Raises ApiError 400 and 404."""
    transfer = await detail(groups, text, scale, recalled.failure)
    return Picture(
        transfer.id,
        recalled.waited_ms(transfer.id),
        [drawing(attempt) for attempt in transfer.attempts],
        transfer.silent,
    )


def drawing(attempt: Attempt) -> Drawing:
    """One attempt, by its own time."""
    about, window = attempt.summary, window_of(attempt)
    zero_us = about.began_us
    return Drawing(
        attempt=about.attempt,
        groups=about.groups,
        state=about.state,
        reason=about.reason,
        prompt_tokens=about.prompt_tokens,
        tokens=about.tokens,
        began_us=zero_us,
        from_us=window.from_us - zero_us,
        to_us=max(window.to_us, window.from_us + 1) - zero_us,
        rows=[_row(line, zero_us) for line in lines_of(attempt)],
        dropped=sum(rank.dropped for rank in attempt.ranks),
    )


def _row(line: Line, zero_us: int) -> Row:
    bars = [Bar(KINDS[span.glyph], span.from_us - zero_us, span.to_us - zero_us) for span in line.spans]
    return Row(line.label, line.note, bars)
