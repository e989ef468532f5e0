"""What the two ends of the shm transport say to each other: one packet each, over a SOCK_SEQPACKET unix socket.

| writer -> receiver | receiver -> writer |
| --- | --- |
| Attach, with the memfd of the writer's pool | Answer |
| Copy | Answer |

A writer waits for each answer before it says more. Who closes the connection copies nothing for it any more.
"""

import msgspec

from kvtransfer.transports.blocks import Block

BLOCKS_PER_PACKET = 512
MAX_PACKET_BYTES = 32 * 1024
"""Holds BLOCKS_PER_PACKET blocks of the largest numbers; a longer packet ends the connection."""


class _Packet(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A tagged array on the wire: the class name, then the fields in order."""


class Attach(_Packet, frozen=True):
    """A writer's first word: whom it means to reach."""

    endpoint: str


class Copy(_Packet, frozen=True):
    """Copy these: (offset in the writer's pool, address in the receiver's memory, bytes) triples."""

    blocks: tuple[Block, ...]


class Answer(_Packet, frozen=True):
    """All that was asked is done; or nothing of it, and `refused` says why."""

    refused: str = ""


ToReceiver = Attach | Copy
