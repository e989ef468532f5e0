"""One attempt of a request as a picture: a line for each wait, chunk and layer, over one axis of time."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from tandem.core.config import RoleName
from tandem.runtime.history import Attempt, Chunk, Entry, Landing, Mark, What, Write

LABEL, NOTE = 25, 23
"""Columns for what a line is about, and for its figures; the picture has the rest."""
LEAST_BAR = 20
WAIT, RUN, QUEUE, POST, WIRE, COMMIT, LANDED, MOMENT, FAULT = "-", "#", ".", ":", "=", "+", "|", "*", "!"
BEFORE, AFTER = "<", ">"
"""There is more of it outside of the picture."""
LEGEND = (
    f"{WAIT} waits  {RUN} computes  {MOMENT} happens  {FAULT} fails   KV of a layer:"
    f" {QUEUE} queue  {POST} post  {WIRE} wire  {COMMIT} commit  {LANDED} landed"
)
MOSTLY = 0.9
"""A wait that takes so much of the axis is cut off."""
LATE = frozenset(
    {
        What.SECOND_TOKEN,
        What.RETRACTED,
        What.BACKED_UP,
        What.RESUMED,
        What.EVICTED,
        What.QUIET_HERE,
        What.QUIET,
        What.FENCED,
        What.ENDED,
        What.GONE,
    }
)
"""What may come long after the transfer, where the axis ends."""
VOTE = "prealloc"
"""The vote that stands before a transfer. Others come later."""
MOST_MS_US = 999_500
"""From here on milliseconds have four digits."""

E = TypeVar("E", bound=Entry)


class Span(NamedTuple):
    """From here to there, in microseconds since 1970. A moment ends at once."""

    from_us: int
    to_us: int
    glyph: str


class Line(NamedTuple):
    """One line of the picture. Where spans meet in a column, the later one is seen."""

    label: str
    spans: Sequence[Span]
    note: str


class Drawn(NamedTuple):
    """A line of the picture as it is seen. Labels and bars are of equal lengths."""

    label: str
    bar: str
    note: str


class Window(NamedTuple):
    """What the axis shows."""

    from_us: int
    to_us: int

    def columns(self, span: Span, width: int) -> range:
        """Where a span is seen: in one column at least, and nowhere if it is outside."""
        if span.to_us < self.from_us or span.from_us > self.to_us:
            return range(0)
        scale = width / max(1, self.to_us - self.from_us)
        first = min(int((max(span.from_us, self.from_us) - self.from_us) * scale), width - 1)
        last = int((min(span.to_us, self.to_us) - self.from_us) * scale)
        return range(first, min(max(first + 1, last), width))


def waterfall(attempt: Attempt, width: int) -> list[Drawn]:
    """Lines of at most `width` columns, and no less than the least picture needs. The first is the axis."""
    bar = max(LEAST_BAR, width - LABEL - NOTE - 2)
    window = window_of(attempt)
    picture = [Drawn(" " * LABEL, axis(window, attempt.summary.began_us, bar), "")]
    for line in lines_of(attempt):
        label = line.label if len(line.label) <= LABEL else f"{line.label[: LABEL - 1]}~"
        picture.append(Drawn(f"{label:{LABEL}}", painted(line.spans, window, bar), line.note))
    return picture


def axis(window: Window, zero_us: int, width: int) -> str:
    """When it begins and ends, and what is in the middle."""
    begin, middle, end = (duration(at_us - zero_us) for at_us in (window.from_us, sum(window) // 2, window.to_us))
    half = width // 2
    return f"{begin:{half}}{middle:{max(0, width - half - len(end))}}{end}"


def painted(spans: Iterable[Span], window: Window, width: int) -> str:
    """The spans in `width` columns."""
    cells = [" "] * width
    for span in spans:
        for column in window.columns(span, width):
            cells[column] = span.glyph
        if span.from_us < window.from_us:
            cells[0] = BEFORE
        if span.to_us > window.to_us:
            cells[-1] = AFTER
    return "".join(cells)


def window_of(attempt: Attempt) -> Window:
    """From the submit until KV and first token are where they belong; a long wait before the first chunk is cut."""
    entries = [event.entry for event in attempt.events]
    times = [at_us for entry in entries if not is_late(entry) for at_us in times_of(entry)]
    if moment(attempt, What.FIRST_TOKEN) is None:  # it ended before: that is what there is to see
        times += [at_us for entry in entries for at_us in times_of(entry)]
    begin, end = min(times, default=0), max(times, default=0)
    for what in (What.GRANTED, What.BOOTSTRAPPED, What.COMPUTING):
        at_us = moment(attempt, what)
        if at_us is not None and at_us - begin > MOSTLY * (end - begin):
            begin = at_us
    return Window(begin, end)


def is_late(entry: Entry) -> bool:
    """Whether the axis need not reach it."""
    if not isinstance(entry, Mark):
        return False
    return entry.what in LATE or (entry.what in (What.ASKED, What.VOTED) and not entry.detail.startswith(VOTE))


def times_of(entry: Entry) -> list[int]:
    """Of all that has happened to it."""
    return [at_us for name in entry.__struct_fields__ if name.endswith("_us") and (at_us := getattr(entry, name))]


# what there is to see


def lines_of(attempt: Attempt) -> Iterator[Line]:
    """In the order in which things go."""
    yield from waits(attempt)
    for rank in attempt.ranks:
        yield from chunks(attempt, rank.rank)
        yield from layers(attempt, rank.rank)
    yield from moments(attempt)


def waits(attempt: Attempt) -> Iterator[Line]:
    """What comes before the first chunk."""
    submitted, granted = (moment(attempt, what, RoleName.DECODE) for what in (What.SUBMITTED, What.GRANTED))
    yield from wait("alloc", submitted, granted)
    yield from votes(attempt)
    bootstrapped, computing = (moment(attempt, what) for what in (What.BOOTSTRAPPED, What.COMPUTING))
    yield from wait("bootstrap", granted, bootstrapped)
    for rank in attempt.ranks:
        grants = [mark.at_us for mark in marks(attempt, What.GRANT, rank.rank)]
        if grants:
            ready = rank.outline.marks.get(What.READY)
            spans = [Span(min(grants), ready or max(grants), WAIT), *(Span(at_us, at_us, MOMENT) for at_us in grants)]
            yield Line(f"  {rank.rank} grants", spans, f"{len(grants)}" if ready else f"{len(grants)}, not all")
    yield from wait("admit", bootstrapped if granted else moment(attempt, What.SUBMITTED), computing)


def wait(label: str, from_us: int | None, to_us: int | None) -> Iterator[Line]:
    """A line, if it began and is over."""
    if from_us is not None and to_us is not None:
        yield Line(label, [Span(from_us, to_us, WAIT)], duration(to_us - from_us))


def votes(attempt: Attempt) -> Iterator[Line]:
    """Of each decode rank: asked, and its answers."""
    for rank in attempt.ranks:
        asked = [mark.at_us for mark in marks(attempt, What.ASKED, rank.rank) if mark.detail == VOTE]
        closed = [mark.at_us for what in (What.GRANTED, What.REFUSED) for mark in marks(attempt, what, rank.rank)]
        said = [mark for mark in marks(attempt, What.VOTED, rank.rank) if mark.detail.startswith(VOTE)]
        if asked:
            spans = [Span(*both, WAIT) for both in zip(asked, sorted(closed), strict=False)]
            spans += [Span(mark.at_us, mark.at_us, MOMENT) for mark in said]
            answers = [mark.detail.removeprefix(VOTE).strip() for mark in said]
            again = f", asked {len(asked)} times" if len(asked) > 1 else ""
            yield Line(f"  {rank.rank} vote", spans, f"{answers[-1] if answers else 'open'}{again}")


def chunks(attempt: Attempt, rank: str) -> Iterator[Line]:
    """Of one stage: planned, begun, computed."""
    for chunk in entries_of(attempt, rank, Chunk):
        spans = [Span(chunk.at_us, chunk.started_us or chunk.at_us, WAIT)]
        if chunk.ran_us:
            spans.append(Span(chunk.started_us, chunk.ran_us, RUN))
        note = duration(chunk.ran_us - chunk.started_us) if chunk.ran_us else "not over"
        yield Line(f"{rank} tokens {chunk.first}-{chunk.last}", spans, note)


def layers(attempt: Attempt, rank: str) -> Iterator[Line]:
    """Of one stage: the KV of each layer on its way, all chunks in one line."""
    landings = {
        (landing.layer, landing.first, landing.last): landing.at_us
        for event in attempt.events
        if isinstance(landing := event.entry, Landing)
    }
    writes: dict[tuple[int, str], list[Write]] = {}
    for write in entries_of(attempt, rank, Write):
        writes.setdefault((write.layer, write.peer), []).append(write)
    for (layer, peer), those in sorted(writes.items()):
        spans = [span for write in those for span in spans_of(write, landings.get((layer, write.first, write.last)))]
        spans.sort(key=lambda span: ORDER.index(span.glyph))
        yield Line(f"{rank} layer {layer} > {peer}", spans, way(those, spans))


def way(writes: Sequence[Write], spans: Sequence[Span]) -> str:
    """How long a layer was on the wire, of all the time since it was computed; what stopped it if it never was."""
    begun = [write for write in writes if write.begun_us]
    if not begun:
        return writes[-1].result or "queued"
    wire = duration(sum(write.ended_us - write.begun_us for write in begun))
    whole = duration(max(span.to_us for span in spans) - min(write.computed_us for write in writes))
    unit = wire.rpartition(" ")[2]
    return f"wire {wire.removesuffix(f' {unit}') if whole.endswith(f' {unit}') else wire} of {whole}"


ORDER = (QUEUE, COMMIT, LANDED, POST, WIRE, FAULT)
"""What is seen where all of it is in one column: the last."""


def spans_of(write: Write, landed_us: int | None) -> Iterator[Span]:
    """The phases of a write, as far as it has come."""
    steps = (write.computed_us, write.taken_us, write.begun_us, write.ended_us, write.committed_us)
    for from_us, to_us, glyph in zip(steps, steps[1:], (QUEUE, POST, WIRE, COMMIT), strict=False):
        if from_us and to_us:
            yield Span(from_us, to_us, glyph)
    if write.ended_us and not write.committed_us:
        yield Span(write.ended_us, write.ended_us, FAULT)
    if landed_us is not None:
        yield Span(landed_us, landed_us, LANDED)


def moments(attempt: Attempt) -> Iterator[Line]:
    """What comes of the transfer, and after it."""
    sampled = moment(attempt, What.FIRST_TOKEN, RoleName.PREFILL, RoleName.COLOCATED)
    yield from happened(attempt, "first token", sampled)
    yield from happened(attempt, "first token on decode", moment(attempt, What.FIRST_TOKEN, RoleName.DECODE))
    for rank in attempt.ranks:
        yield from happened(attempt, f"{rank.rank} has all its KV", rank.outline.marks.get(What.LANDED))
    yield from happened(attempt, "transferred", moment(attempt, What.TRANSFERRED))
    yield from decoding(attempt, sampled)
    yield from mishaps(attempt)
    yield from happened(attempt, "ended", moment(attempt, What.ENDED))
    for rank in attempt.ranks:
        yield from happened(attempt, f"{rank.rank} pages are back", rank.outline.marks.get(What.GONE))


def mishaps(attempt: Attempt) -> Iterator[Line]:
    """A line for each thing that went wrong on a rank, however often; it says why at first."""
    found: dict[tuple[str, What], list[Mark]] = {}
    for event in attempt.events:
        if isinstance(mark := event.entry, Mark) and mark.what in (What.FAILED_HERE, What.RETRACTED, What.EVICTED):
            found.setdefault((event.rank, mark.what), []).append(mark)
    for (rank, what), those in found.items():
        glyph = FAULT if what is What.FAILED_HERE else MOMENT
        why = next((mark.detail for mark in those if mark.detail), "")
        yield Line(f"{rank} {what.value}", [Span(mark.at_us, mark.at_us, glyph) for mark in those], why)


def decoding(attempt: Attempt, sampled: int | None) -> Iterator[Line]:
    """From the first token on, on whichever group goes on from it."""
    began = moment(attempt, What.DECODING) if RoleName.DECODE.value in attempt.summary.groups else sampled
    if began is None:
        return
    ended, tokens = moment(attempt, What.ENDED), attempt.summary.tokens
    note = f"{duration(ended - began)}, {tokens or 0} tokens" if ended else "goes on"
    last = max(times_of(attempt.events[-1].entry), default=began)
    yield Line("decode", [Span(began, ended or last, RUN)], note)


def happened(attempt: Attempt, label: str, at_us: int | None) -> Iterator[Line]:
    """A moment, if it has come."""
    if at_us is not None:
        yield Line(label, [Span(at_us, at_us, MOMENT)], f"at {duration(at_us - attempt.summary.began_us)}")


# looking things up


def moment(attempt: Attempt, what: What, *roles: RoleName) -> int | None:
    """When it first happened, on the first rank of these roles that knows; of any role by default."""
    names = [role.value for role in roles or RoleName]
    times = (rank.outline.marks.get(what) for rank in attempt.ranks if rank.role in names)
    return next((at_us for at_us in times if at_us is not None), None)


def marks(attempt: Attempt, what: What, rank: str) -> list[Mark]:
    """All of them on one rank."""
    return [mark for mark in entries_of(attempt, rank, Mark) if mark.what is what]


def entries_of(attempt: Attempt, rank: str, kind: type[E]) -> list[E]:
    """Entries of one kind on one rank, in order."""
    return [event.entry for event in attempt.events if event.rank == rank and isinstance(event.entry, kind)]


def duration(us: int) -> str:
    """Three digits, and the unit that suits them."""
    if abs(us) < MOST_MS_US:
        return f"{figure(us)} ms"
    return f"{us / 1e6:.3g} s" if us < 1_000 * MOST_MS_US else f"{us / 1e6:.0f} s"


def figure(us: int) -> str:
    """Milliseconds, three digits and more if it has more before the point."""
    return f"{us / 1000:.3g}" if abs(us) < MOST_MS_US else f"{us / 1000:.0f}"
