"""The page pool of one rank: one range of memory that peers can be given the address of."""

import mmap

import numpy as np

from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId, PageId
from tandem.core.messages import Region


class PageMemory:
    """Fits `ports.Memory`: [layers, num_pages, block_bytes] bytes, page aligned, zero until written.

    The operating system gives a page when it is first touched, so a large pool costs nothing until it fills.
    """

    def __init__(self, layers: tuple[LayerId, LayerId], num_pages: int, block_bytes: int) -> None:
        first, last = layers
        size = (last - first) * num_pages * block_bytes
        if size < 1:
            raise ConfigError(f"num-pages is {num_pages}: {last - first} layers of it make an empty page pool")
        try:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise ConfigError(f"num-pages is {num_pages}: no room for a pool of {size} bytes: {error}") from error
        self.buffer = memoryview(self._map)
        """All bytes, writable; for np.frombuffer and torch.frombuffer."""
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
        self._map.close()


class PlainMemory:
    """The same face over a NumPy array, at an address that the caller makes up: for simulators."""

    def __init__(self, layers: tuple[LayerId, LayerId], num_pages: int, block_bytes: int, base: int = 0) -> None:
        first, last = layers
        self.buffer = np.zeros((last - first) * num_pages * block_bytes, np.uint8).data
        self.region = Region(
            base=base, first_layer=first, last_layer=last, num_pages=num_pages, block_bytes=block_bytes
        )

    def block(self, layer: LayerId, page: PageId) -> memoryview:
        """The bytes of one page of one layer, writable, without a copy."""
        return self.buffer[block_slice(self.region, layer, page)]


Pool = PageMemory | PlainMemory


def block_slice(region: Region, layer: LayerId, page: PageId) -> slice:
    """Where one page of one layer lies in the pool. Raises IndexError for a page or layer that is not in it."""
    if not (region.first_layer <= layer < region.last_layer and 0 <= page < region.num_pages):
        raise IndexError(f"no block (layer {layer}, page {page}) in {region}")
    start = region.address(layer, page) - region.base
    return slice(start, start + region.block_bytes)
