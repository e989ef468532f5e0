"""Why an epoch is over: in one of a few words for who counts, and in a sentence for who reads."""

import enum

import msgspec


class EndKind(enum.Enum):
    """What kind of thing has ended it."""

    LEFT = "left"  # in order: a rank was told to end
    DIED = "died"  # a rank's process, as its supervisor has seen
    SILENT = "silent"  # a rank, for too long
    STALLED = "stalled"  # the ring stands still although there is work
    REPLACED = "replaced"  # a rank, by another process in its place
    DIVERGED = "diverged"  # the ranks disagree
    ENGINE = "engine"  # one failed
    RING = "ring"  # a message over it was malformed, or was not taken
    OTHER = "other"  # a bug


class End(msgspec.Struct, frozen=True, array_like=True):
    """The cause, in the same words on every rank, and its kind, told by whoever has found it."""

    cause: str = ""
    kind: EndKind = EndKind.OTHER

    @property
    def left(self) -> bool:
        """In order."""
        return self.kind is EndKind.LEFT


NO_END = End()
"""Of a process that has outlived no epoch."""
