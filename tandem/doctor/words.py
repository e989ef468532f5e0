"""What two doctors say to each other. Who changes a word raises `messages.PROTOCOL`: it is compared first.

| from -> to           | words                                                                         |
| caller -> listener   | Opening, Meet, Ping, OpenPort, SendRaw, WriteKnown, CheckKnown, WriteLarge    |
|                      | Tell, Leave                                                                   |
| listener -> caller   | Opening, Declined, Meet, Pong, Port, Moved, Outcome, Told                     |
"""

import msgspec

from tandem.core.messages import Hello
from tandem.doctor.report import Finding


class _Word(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A tagged array on the wire, as all messages are."""


class Opening(_Word, frozen=True):
    """The first word of both. It stays as it is for ever, so that all versions can read it."""

    protocol: int
    version: str  # of the package


class Declined(_Word, frozen=True):
    """The listener does not talk to this caller, and why."""

    detail: str


class Card(msgspec.Struct, frozen=True):
    """Who an end is. Without a transport `hello` is missing, and `trouble` says why."""

    host: str  # the address that the other end reaches
    name: str
    versions: dict[str, str]  # of packages
    ports: tuple[int, int]  # from which its system picks
    seed: bytes  # of the pattern that it writes
    hello: Hello | None
    trouble: str = ""


class Meet(_Word, frozen=True):
    """Who I am; the answer says who you are."""

    card: Card


class Ping(_Word, frozen=True):
    """What time is it with you?"""


class Pong(_Word, frozen=True):
    """Wall clock, in nanoseconds since 1970."""

    wall_ns: int


class OpenPort(_Word, frozen=True):
    """Take the bytes of one raw connection."""


class Port(_Word, frozen=True):
    """Where, and what to say first. `detail` says why there is none."""

    port: int
    token: bytes
    detail: str = ""


class SendRaw(_Word, frozen=True):
    """Send to my raw port as fast as you can."""

    port: Port


class WriteKnown(_Word, frozen=True):
    """Write your pattern into my memory."""


class CheckKnown(_Word, frozen=True):
    """Is my pattern in your memory, byte for byte?"""


class Outcome(_Word, frozen=True):
    """What went wrong; empty: nothing."""

    detail: str = ""


class WriteLarge(_Word, frozen=True):
    """Write into my memory as fast as you can."""


class Moved(_Word, frozen=True):
    """How much, and how long it took, or what went wrong."""

    bytes: int = 0
    seconds: float = 1.0
    detail: str = ""

    @property
    def gb_s(self) -> float:
        """10^9 bytes per second."""
        return self.bytes / self.seconds / 1e9


class Tell(_Word, frozen=True):
    """All that was found out about both; the last word but one."""

    findings: tuple[Finding, ...]


class Told(_Word, frozen=True):
    """The last word."""


class Leave(_Word, frozen=True):
    """The caller ends early, and why."""

    detail: str


ToListener = Opening | Meet | Ping | OpenPort | SendRaw | WriteKnown | CheckKnown | WriteLarge | Tell | Leave
ToCaller = Opening | Declined | Meet | Pong | Port | Moved | Outcome | Told
