"""A rolling 64-bit digest of replicated state: equal on all ranks at every tick, or the epoch ends."""

import hashlib
from collections.abc import Sequence

import msgspec

from tandem.core.ids import PageId
from tandem.core.inputs import Frame
from tandem.core.plan import Ask, Row

_encode = msgspec.msgpack.Encoder().encode


def advance(
    digest: int,
    frame: Frame,
    rows: Sequence[Row],
    asks: Sequence[Ask],
    given: Sequence[PageId],
    counts: Sequence[int],
) -> int:
    """Fold one tick into the digest: the frame, what it led to, the pages it gave out, free pages and queue lengths.

    A page is digested once, when it is given; from then on a row's page table is a consequence.
    """
    decided = [(row.room.rid, row.room.attempt, row.start, len(row.tokens), len(row.pages)) for row in rows]
    content = _encode((digest, frame, decided, asks, given, counts))
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
