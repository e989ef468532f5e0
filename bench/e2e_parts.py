"""Where the time of one request goes, by what the ranks remember of it and what the router tells its client.

Groups of one rank each on one machine, so all times are by one clock. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from bench.streams import Stream
from tandem.runtime.history import Attempt, Chunk, Mark, What

Parts = dict[str, float]
"""Milliseconds by what took them, in order."""

HTTP = "HTTP, there and back"
ROUTER = "router, until it is sent"
SOCKETS = "sockets to the rank and back, router's first event"
BOOTSTRAP = "queue, pages of decode, bootstrap"
LAUNCH = "to the engine's thread"
FORWARD = "forward and sampling"
BETWEEN = "between chunks"
TOLD = "from the engine to rank 0's word"
CARRIED = "first token: prefill, router, decode"
EXPOSED = "transfer exposed, beyond the first token"
JOINED = "until decode runs it"
STEP = "one step of decode"
OUT = "socket, router, HTTP"


def first_token(stream: Stream, attempt: Attempt) -> Parts:
    """From the first byte of the request to its first event. Raises KeyError if the ranks do not know all of it."""
    assert stream.server_ms is not None, "our router tells it"
    head = "prefill" if "prefill" in attempt.summary.groups else "colocated"
    marks, chunks = marks_of(attempt, head), chunks_of(attempt, head)
    inside_ms = ms(marks[What.SUBMITTED], marks[What.FIRST_TOKEN])
    server_ms = stream.server_ms
    return {
        HTTP: stream.first_s * 1000 - server_ms["first-token"],
        ROUTER: server_ms["first-token"] - server_ms["prefill"],
        SOCKETS: server_ms["prefill"] - inside_ms,
        BOOTSTRAP: ms(marks[What.SUBMITTED], marks[What.COMPUTING]),
        LAUNCH: ms(marks[What.COMPUTING], chunks[0].started_us),
        FORWARD: sum(ms(chunk.started_us, chunk.ran_us) for chunk in chunks),
        BETWEEN: sum(ms(one.ran_us, other.started_us) for one, other in pairwise(chunks)),
        TOLD: ms(chunks[-1].ran_us, marks[What.FIRST_TOKEN]),
    }


def second_token(stream: Stream, attempt: Attempt) -> Parts:
    """From prefill's word of the first token to the event of the second, which decode computes. Raises KeyError."""
    prefill, decode = marks_of(attempt, "prefill"), marks_of(attempt, "decode")
    here_us = max(decode[What.FIRST_TOKEN], decode[What.TRANSFERRED])
    return {
        CARRIED: ms(prefill[What.FIRST_TOKEN], decode[What.FIRST_TOKEN]),
        EXPOSED: ms(decode[What.FIRST_TOKEN], here_us),
        JOINED: ms(here_us, decode[What.DECODING]),
        STEP: ms(decode[What.DECODING], decode[What.SECOND_TOKEN]),
        OUT: stream.events_s[1] * 1000 - decode[What.SECOND_TOKEN] / 1000,
    }


def marks_of(attempt: Attempt, role: str) -> Mapping[What, int]:
    """When each thing first happened on rank 0 of a role."""
    found: dict[What, int] = {}
    for entry in entries(attempt, role):
        if isinstance(entry, Mark):
            found.setdefault(entry.what, entry.at_us)
    return found


def chunks_of(attempt: Attempt, role: str) -> Sequence[Chunk]:
    """Of the prompt, in order."""
    return [entry for entry in entries(attempt, role) if isinstance(entry, Chunk)]


def entries(attempt: Attempt, role: str) -> Iterator[object]:
    """Of rank 0 of a role."""
    name = f"{attempt.summary.groups[role]}.0"
    return (happened.entry for happened in attempt.events if happened.rank == name)


def ms(from_us: int, to_us: int) -> float:
    """Milliseconds between."""
    return (to_us - from_us) / 1000
