"""One request as spans: the router's part, and what ranks tell of it. Pure; times are microseconds since 1970."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from router.stream import FINISHED
from tandem.core.config import RoleName
from tandem.runtime.history import Attempt, Chunk, What, Witnessed, Write

Value = str | int | float | bool


@dataclass(frozen=True)
class Span:
    """`parts` lie within it. A failure is what went wrong."""

    name: str
    from_us: int
    to_us: int
    about: Mapping[str, Value] = field(default_factory=dict)
    parts: tuple["Span", ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class Told:
    """What the router knows of a request that is over."""

    request_id: str
    arrived_us: int
    queued_us: int
    ended_us: int
    prompt_tokens: int
    tokens: int
    choices: int
    outcome: str  # stop, length, or the code of an error


def request_span(told: Told, attempts: Sequence[Attempt], silent: Mapping[str, str]) -> Span:
    """All of it. Ranks that were not heard are named."""
    about: dict[str, Value] = {
        "tandem.request_id": told.request_id,
        "tandem.prompt_tokens": told.prompt_tokens,
        "tandem.tokens": told.tokens,
        "tandem.choices": told.choices,
        "tandem.outcome": told.outcome,
    }
    about |= {"tandem.not_heard": ", ".join(silent)} if silent else {}
    queue = Span("queue", told.arrived_us, told.arrived_us + told.queued_us)
    parts = (queue, *(attempt_span(attempt) for attempt in attempts))
    failure = "" if told.outcome in FINISHED else told.outcome
    return Span("request", told.arrived_us, told.ended_us, about, parts, failure)


def attempt_span(attempt: Attempt) -> Span:
    """One attempt on its groups, from the first that any of their ranks knows to the end for its client."""
    summary = attempt.summary
    about: dict[str, Value] = {f"tandem.{role}": name for role, name in summary.groups.items()}
    about |= {"tandem.attempt": summary.attempt, "tandem.choice_id": summary.id, "tandem.kv_bytes": summary.bytes}
    parts = (*waits(attempt), *chunks(attempt), *writes(attempt), *decoding(attempt))
    times = [at_us for rank in attempt.ranks for what, at_us in rank.outline.marks.items() if what is not What.GONE]
    to_us = max([summary.began_us, *times, *(part.to_us for part in parts)])
    failure = "" if summary.reason in ("", "stop", "length", "stop_string") else summary.reason
    return Span(f"attempt {summary.attempt}", summary.began_us, to_us, about, parts, failure)


def waits(attempt: Attempt) -> Iterator[Span]:
    """What comes before the first chunk, and the first token."""
    prefill, decode = head(attempt, RoleName.PREFILL, RoleName.COLOCATED), head(attempt, RoleName.DECODE)
    yield from between("alloc", moment(decode, What.SUBMITTED), moment(decode, What.GRANTED))
    yield from between("bootstrap", moment(decode, What.GRANTED), moment(prefill, What.BOOTSTRAPPED))
    begun = moment(prefill, What.BOOTSTRAPPED) or moment(prefill, What.SUBMITTED)
    yield from between("admit", begun, moment(prefill, What.COMPUTING))
    first = moment(prefill, What.FIRST_TOKEN)
    yield from between("first token", moment(prefill, What.COMPUTING), first)
    yield from between("exposed transfer", first, moment(decode, What.TRANSFERRED))


def chunks(attempt: Attempt) -> Iterator[Span]:
    """The prompt's, on each stage."""
    for event in attempt.events:
        if isinstance(chunk := event.entry, Chunk) and chunk.ran_us:
            about: dict[str, Value] = {"tandem.rank": event.rank, "tandem.tick": int(chunk.tick)}
            yield Span(f"prefill tokens {chunk.first}-{chunk.last}", chunk.started_us, chunk.ran_us, about)


def writes(attempt: Attempt) -> Iterator[Span]:
    """Each layer's way to decode: from when it was computed until the decode rank was told, or it failed."""
    for event in attempt.events:
        if isinstance(write := event.entry, Write) and write.ended_us:
            about: dict[str, Value] = {
                "tandem.rank": event.rank,
                "tandem.peer": write.peer,
                "tandem.pages": write.pages,
                "tandem.wire_us": write.ended_us - write.begun_us if write.begun_us else 0,
            }
            failure = "" if write.result in ("", "ok") else write.result
            begun_us, ended_us = write.computed_us or write.at_us, write.committed_us or write.ended_us
            yield Span(f"transfer layer {write.layer}", begun_us, ended_us, about, failure=failure)


def decoding(attempt: Attempt) -> Iterator[Span]:
    """From the first token on, where the request was decoded."""
    decode = head(attempt, RoleName.DECODE)
    alone = head(attempt, RoleName.COLOCATED)
    begun = moment(decode, What.DECODING) if decode is not None else moment(alone, What.FIRST_TOKEN)
    yield from between("decode", begun, moment(decode or alone, What.ENDED))


def head(attempt: Attempt, *roles: RoleName) -> Witnessed | None:
    """The lowest rank of these roles that told."""
    names = [role.value for role in roles]
    return min((rank for rank in attempt.ranks if rank.role in names), key=lambda rank: rank.rank, default=None)


def moment(rank: Witnessed | None, what: What) -> int | None:
    """When it first happened there, if it did."""
    return rank.outline.marks.get(what) if rank is not None else None


def between(name: str, from_us: int | None, to_us: int | None) -> Iterator[Span]:
    """A span, if both its ends are known."""
    if from_us is not None and to_us is not None:
        yield Span(name, from_us, max(from_us, to_us))
