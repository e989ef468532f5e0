"""The memory of one rank: a page pool that peers are given the address of, and host pages for who must make room."""

import contextlib
import fcntl
import math
import mmap
import os
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId, PageId
from tandem.core.messages import Region
from tandem.ports import TAIL_BYTES, Memory

F_SEAL_FUTURE_WRITE = 0x10
"""As in linux/fcntl.h (5.1): who maps the file from now on cannot write it. Python has no name for it."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


class PageMemory:
    """Fits `ports.Memory`: [layers, num_pages, block_bytes] bytes, page aligned, zero until written.

    The operating system gives a page when it is first touched, so a large pool costs nothing until it fills. A shared
    pool has a `memfd`, with which other processes may read it: none can write it or change its size.
    """

    def __init__(
        self, layers: tuple[LayerId, LayerId], num_pages: int, block_bytes: int, *, shared: bool = False
    ) -> None:
        first, last = layers
        size = (last - first) * num_pages * block_bytes
        if size < 1:
            raise ConfigError(f"num-pages is {num_pages}: {last - first} layers of it make an empty page pool")
        told = f"num-pages is {num_pages}"
        self.memfd: int | None = None
        if shared:
            self.memfd, self._map = _share_memory(size + TAIL_BYTES, told)
        else:
            self._map = _map_memory(size + TAIL_BYTES, told)
        self.buffer = memoryview(self._map)[:size]
        """All bytes of the pages, writable; for np.frombuffer and torch.frombuffer."""
        self.tail = memoryview(self._map)[size:]
        base = int(np.frombuffer(self._map, np.uint8).ctypes.data)
        self.region = Region(
            base=base, first_layer=first, last_layer=last, num_pages=num_pages, block_bytes=block_bytes
        )

    def block(self, layer: LayerId, page: PageId) -> memoryview:
        """The bytes of one page of one layer, writable, without a copy."""
        return self.buffer[block_slice(self.region, layer, page)]

    def close(self) -> None:
        """Give the memory back. Raises BufferError while a view of it is alive."""
        self.buffer.release()
        self.tail.release()
        self._map.close()
        if self.memfd is not None:
            os.close(self.memfd)


class PlainMemory:
    """The same face over a NumPy array, at an address that the caller makes up: for simulators."""

    memfd = None

    def __init__(self, layers: tuple[LayerId, LayerId], num_pages: int, block_bytes: int, base: int = 0) -> None:
        first, last = layers
        self.buffer = np.zeros((last - first) * num_pages * block_bytes, np.uint8).data
        self.tail = memoryview(bytearray())  # its peers are met without a handshake
        self.region = Region(
            base=base, first_layer=first, last_layer=last, num_pages=num_pages, block_bytes=block_bytes
        )

    def block(self, layer: LayerId, page: PageId) -> memoryview:
        """The bytes of one page of one layer, writable, without a copy."""
        return self.buffer[block_slice(self.region, layer, page)]


Pool = PageMemory | PlainMemory


class HostPages:
    """Fits `ports.HostCopies` for a pool that the CPU can reach: [num_pages, layers, block_bytes] bytes.

    Like the pool, it costs nothing until it is used. With zero pages, nothing can be saved. Copies are numpy's: it lets
    other threads run meanwhile.
    """

    def __init__(self, memory: Memory, num_pages: int) -> None:
        region = memory.region
        self._memory = memory
        self._layers = tuple(LayerId(layer) for layer in range(region.first_layer, region.last_layer))
        shape = num_pages, len(self._layers), region.block_bytes
        size = math.prod(shape)
        there = _map_memory(size, f"host-pages is {num_pages}") if size else b""
        self._pages = np.frombuffer(there, np.uint8).reshape(shape)

    def save(self, pages: Sequence[PageId], host_pages: Sequence[PageId]) -> None:
        """Copy all layers of pages[i] of the pool to host_pages[i]."""
        for here, there in self._blocks(pages, host_pages):
            np.copyto(there, here)

    def load(self, host_pages: Sequence[PageId], pages: Sequence[PageId]) -> None:
        """Copy all layers of host_pages[i] back, to pages[i] of the pool."""
        for here, there in self._blocks(pages, host_pages):
            np.copyto(here, there)

    def _blocks(
        self, pages: Sequence[PageId], host_pages: Sequence[PageId]
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
        """Every block in the pool with its place in host memory. Raises IndexError for a page that is not there."""
        for page, host_page in zip(pages, host_pages, strict=True):
            if not 0 <= host_page < len(self._pages):
                raise IndexError(f"no host page {host_page}: there are {len(self._pages)}")
            for layer, there in zip(self._layers, self._pages[host_page], strict=True):
                yield np.frombuffer(self._memory.block(layer, page), np.uint8), there


def _map_memory(size: int, told: str) -> mmap.mmap:
    """Zeroed memory that the operating system gives when it is first touched. Raises ConfigError that begins `told`."""
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(f"{told}: no room for its {size} bytes, {error}; give less") from error


def _share_memory(size: int, told: str) -> tuple[int, mmap.mmap]:
    """The same in a file without a name, sealed so that this map stays the only one that can write it."""
    try:
        with contextlib.ExitStack() as undo:
            file = os.memfd_create("tandem pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            undo.callback(os.close, file)
            os.ftruncate(file, size)
            there = mmap.mmap(file, size, flags=mmap.MAP_SHARED)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
            undo.pop_all()
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(f"{told}: no shared memory for its {size} bytes, {error}; give less") from error
    return file, there


def block_slice(region: Region, layer: LayerId, page: PageId) -> slice:
    """Where one page of one layer lies in the pool. Raises IndexError for a page or layer that is not in it."""
    if not (region.first_layer <= layer < region.last_layer and 0 <= page < region.num_pages):
        raise IndexError(f"no block (layer {layer}, page {page}) in {region}")
    start = region.address(layer, page) - region.base
    return slice(start, start + region.block_bytes)
