"""The past of requests in JSON: what a rank's own port says of them, what the router makes of it, and trace draws.

Times are microseconds since 1970, by the clock of the rank that speaks; 0: it has not happened, or is not known.
"""

import enum

import msgspec


class What(enum.Enum):
    """What can happen to a room on a rank. All but the `here` ones and those of a grant are true of its whole group."""

    SUBMITTED = "submitted"
    COMPILED = "compiled"  # its grammar is ready
    ASKED = "asked"  # decode: a vote is open; the detail is the question
    VOTED = "voted"  # decode: this rank's vote
    REFUSED = "refused"  # decode: the vote said no, its pages go back
    GRANTED = "granted"  # decode: it has its pages, and prefill is told so
    GRANT = "grant"  # prefill: this rank has heard so, from the decode rank in the detail
    READY = "ready here"  # prefill: this rank has all the grants it needs
    BOOTSTRAPPED = "bootstrapped"  # prefill: every rank has
    COMPUTING = "computing"  # it has pages on prefill: its first chunk is planned
    FIRST_TOKEN = "first token"  # on decode: it has come from prefill
    SENT = "sent here"  # prefill: this rank's layers have all been committed
    LANDED = "landed here"  # decode: this rank's layers have all come
    TRANSFERRED = "transferred"  # decode: every rank's have
    DECODING = "decoding"
    SECOND_TOKEN = "second token"  # the first one that decode has computed
    RETRACTED = "retracted"  # decode: it makes room, and is copied to host memory
    BACKED_UP = "backed up here"
    RESUMED = "resumed"
    EVICTED = "evicted"  # decode: it has lost its pages; the next attempt computes them anew
    FAILED_HERE = "failed here"
    FAILED = "failed"
    CORRUPTED = "corrupted"  # decode: what has landed is not what was sent
    QUIET_HERE = "quiet here"  # prefill: nothing of this rank can touch its pages any more
    QUIET = "quiet"
    FENCED = "fenced"  # its peer was cut off, so its pages are free although no word came
    ENDED = "ended"  # for its client; the detail is the reason
    GONE = "gone"  # its pages are back


class HeldRoom(msgspec.Struct):
    """An ended room whose pages a group holds for a peer group that may still touch them."""

    group: str
    room: str
    peer: str
    pages: int
    age_ms: int


class HeldPages(msgspec.Struct):
    """All of them, longest first, and why some groups could not be asked."""

    rooms: list[HeldRoom]
    silent: dict[str, str]


class _Entry(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind"):
    """One thing that happened, or is happening. Only its timeline changes it, until it is whole."""


class Mark(_Entry, tag="mark"):
    """A moment."""

    at_us: int
    what: What
    detail: str = ""


class Chunk(_Entry, tag="chunk"):
    """Tokens [first, last) of the prompt on this stage: planned, begun and computed."""

    at_us: int
    tick: int
    first: int
    last: int
    started_us: int = 0
    ran_us: int = 0


class Write(_Entry, tag="write"):
    """Pages of one layer on their way to a decode rank, which was told when it was `committed`.

    The layer's KV was computed, the write was queued (`at_us`), taken up by the peer's worker, handed to the transport,
    and was over. Tokens are known when it is committed.
    """

    at_us: int
    layer: int
    peer: str  # such as d0.1
    pages: int
    computed_us: int
    taken_us: int = 0
    begun_us: int = 0
    ended_us: int = 0
    result: str = ""  # of the transport, once it is over
    committed_us: int = 0
    first: int = 0
    last: int = 0


class Landing(_Entry, tag="landing"):
    """A commit has come: this rank has the tokens [first, last) of one of its layers."""

    at_us: int
    layer: int
    first: int
    last: int


Entry = Mark | Chunk | Write | Landing


class Outline(msgspec.Struct):
    """One room on one rank, in short. Times of writes are sums over those that were committed."""

    rid: str  # 16 hex digits: the x-request-id
    attempt: int
    peer: str | None = None  # the other group
    prompt_tokens: int = 0
    tokens: int | None = None  # generated, once it has ended
    state: What = What.SUBMITTED
    reason: str = ""  # why it ended
    marks: dict[What, int] = {}  # when each first happened
    layers: int = 0  # whose last token has been committed, or has landed
    writes: int = 0
    bytes: int = 0
    queue_us: int = 0  # computed -> taken up
    post_us: int = 0  # -> handed to the transport
    wire_us: int = 0  # -> over
    commit_us: int = 0  # -> the decode rank is told


class Rank(msgspec.Struct):
    """Who speaks, and what its clock says."""

    group: str
    rank: int
    role: str
    now_us: int

    @property
    def name(self) -> str:
        """Such as p0.1."""
        return f"{self.group}.{self.rank}"


class Outlines(Rank):
    """GET /timelines of a rank: newest first."""

    rooms: list[Outline]


class Track(msgspec.Struct):
    """All that is kept of one room: `dropped` entries are missing from the middle."""

    outline: Outline
    entries: list[Entry]
    dropped: int


class Tracks(Rank):
    """GET /timelines/RID of a rank: its attempts, oldest first."""

    rooms: list[Track]


# what a router makes of what the ranks tell


class Summary(msgspec.Struct):
    """One attempt of one request, from all ranks that told of it."""

    id: str  # the x-request-id
    attempt: int
    groups: dict[str, str]  # by role
    state: str
    reason: str
    prompt_tokens: int
    tokens: int | None
    layers: tuple[int, int]  # handed over, of so many; 0 of 0: nothing is handed over
    bytes: int
    began_us: int
    phases_ms: dict[str, float]
    """Milliseconds, of what is over. `alloc`: until decode had pages and the vote of its ranks. `bootstrap`: until
    prefill knew. `admit`: until prefill had pages. `compute`: until token 0. `exposed`: until the last KV was there.
    `decode`: from there on. And of a write, on average, `queue`: until the peer's worker took it up. `post`: until the
    transport had it. `wire`: until it was over. `commit`: until the decode rank was told.
    """


class Transfers(msgspec.Struct):
    """GET /transfers of a router: newest first, and who did not answer, with why."""

    transfers: list[Summary]
    silent: dict[str, str]


class Witnessed(msgspec.Struct):
    """One rank of an attempt. Its clock is `offset_us` ahead of the router's, give or take `within_us`; if that is
    more than nothing, its times have been `shifted` to the router's.
    """

    rank: str
    role: str
    offset_us: int
    within_us: int
    shifted: bool
    outline: Outline
    dropped: int


class Happened(msgspec.Struct):
    """An entry and whose it is."""

    rank: str
    entry: Entry


class Attempt(msgspec.Struct):
    """All that is known of one attempt: events of all ranks, in order."""

    summary: Summary
    ranks: list[Witnessed]
    events: list[Happened]


class Transfer(msgspec.Struct):
    """GET /transfers/ID of a router: its attempts, and who did not answer, with why."""

    id: str
    attempts: list[Attempt]
    silent: dict[str, str]
