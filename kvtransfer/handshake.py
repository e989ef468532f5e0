"""The pure rules of the handshake between ranks of two groups; `peer_link` tells how it goes."""

import hashlib

from tandem.core.ids import RankId
from tandem.core.inputs import FirstToken
from tandem.core.messages import Cancelled, Commit, Grant, Hello, Quiet

HELLO_S = 1.0
"""An unanswered Hello is sent again after this."""
REFRESH_S = 5.0
"""A refused one after this; and an open session is recalled so often, to find out when the other side has forgotten."""
CONNECT_DEADLINE_S = 5.0
MISSING_S = 2.0
"""A rank that left the registry is lost after this: a registry that restarted empty is full again by then."""
MAX_TAKEN = 1024
"""Messages taken from one socket in one go."""
ANSWER_BYTES = 64

Key = tuple[str, RankId]
Said = Grant | Commit | FirstToken | Quiet | Cancelled


def mismatch(mine: Hello, theirs: Hello) -> str | None:
    """Why KV cannot move between two ranks, with both values; None if it can."""
    pairs = {
        "fingerprint": (mine.fingerprint, theirs.fingerprint),
        "transport": (mine.transport, theirs.transport),
        "bytes per page and layer": (mine.region.block_bytes, theirs.region.block_bytes),
    }
    for what, (ours, other) in pairs.items():
        if ours != other:
            text = f"{what}: {mine.group}/{mine.rank} has {ours}, {theirs.group}/{theirs.rank} has {other}"
            return f"{text}; their engines are {mine.engine} and {theirs.engine}"
    return None


def identity(hello: Hello) -> bytes:
    """What a decode rank is called on a prefill rank's socket: at most 255 bytes, or the socket refuses it."""
    return f"{hello.group}/{hello.rank}/{hello.incarnation:x}".encode()


def known_answer(prefill: Hello, decode: Hello) -> bytes:
    """What the prefill rank writes into the decode rank's memory, and the decode rank looks for, in each session."""
    who = b" ".join([identity(prefill), identity(decode), f"{decode.fence} {decode.session}".encode()])
    return hashlib.sha512(who).digest()
