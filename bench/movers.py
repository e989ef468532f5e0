"""Ways to move blocks from this process to the other one, or from one pool to another one of this process."""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.ends import HOST, MOONCAKE, SHM, Doors, End
from bench.plain_socket import Plain
from kvtransfer.transports.blocks import Block, batches, coalesce
from kvtransfer.transports.mooncake import BLOCKS_PER_CALL, OK
from tandem.core.events import Written
from tandem.engine.memory import PageMemory

WRITE_S = 60.0
MEMCPY, RAW, PLAIN = "memcpy", "raw Mooncake call", "loopback socket"

Move = Callable[[], object]
Mover = Callable[[Sequence[Block]], Move]
"""Prepares the move of some blocks, all offsets in pools; what it returns moves them and is what is timed.

A transport is given the blocks as they come, as in production; what it is compared with gets them coalesced.
"""


def movers(near: End, copy: PageMemory, doors: Doors) -> dict[str, Mover]:
    """All ways, each connected. `copy` is what memcpy copies to. Raises ConnectionError."""
    plain = Plain(HOST, doors.port, near.memory.buffer)
    return {
        SHM: _transport(near, doors, SHM),
        MEMCPY: partial(_memcpy, near.region.base, copy.region.base),
        MOONCAKE: _transport(near, doors, MOONCAKE),
        RAW: _raw_mooncake(near, doors),
        PLAIN: lambda blocks: partial(plain.write, coalesce(blocks)),
    }


def _transport(near: End, doors: Doors, kind: str) -> Mover:
    transport, peer = near.open(kind), doors.hellos[kind]
    transport.connect(peer, WRITE_S)

    def write(blocks: Sequence[Block]) -> None:
        if (result := transport.write(peer, blocks, WRITE_S)) is not Written.OK:
            raise ConnectionError(f"a write by {kind} ended {result.value}")

    return lambda blocks: partial(write, _at(near.region.base, peer.region.base, blocks))


def _raw_mooncake(near: End, doors: Doors) -> Mover:
    """An engine of our own: nothing of Tandem but the cap on blocks per call, more of which fail."""
    from mooncake.engine import TransferEngine

    engine, peer = TransferEngine(), doors.hellos[MOONCAKE]
    if engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "") != OK:
        raise ConnectionError("a second Mooncake engine cannot start")
    if engine.register_memory(near.region.base, near.region.bytes) != OK:
        raise ConnectionError("a second Mooncake engine cannot register the pool")

    def write(calls: list[list[list[int]]]) -> None:
        for columns in calls:
            if engine.batch_transfer_sync_write(peer.endpoint, *columns) != OK:
                raise ConnectionError("a raw write by Mooncake failed")

    def prepared(blocks: Sequence[Block]) -> Move:
        merged = _at(near.region.base, peer.region.base, coalesce(blocks))
        return partial(write, [columns(batch) for batch in batches(merged, BLOCKS_PER_CALL)])

    return prepared


def _memcpy(source: int, destination: int, blocks: Sequence[Block]) -> Move:
    return partial(copy_all, _at(source, destination, coalesce(blocks)))


def copy_all(blocks: Sequence[Block]) -> None:
    """One memmove per block, of addresses."""
    for source, destination, length in blocks:
        ctypes.memmove(destination, source, length)


def columns(blocks: Sequence[Block]) -> list[Any]:
    """Sources, destinations and lengths."""
    return [list(column) for column in zip(*blocks, strict=True)]


def _at(source: int, destination: int, blocks: Sequence[Block]) -> list[Block]:
    """The same blocks as addresses."""
    return [(source + here, destination + there, length) for here, there, length in blocks]
