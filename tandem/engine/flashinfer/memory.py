"""Pages in a GPU's memory, and pinned host pages for who must make room."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId, PageId
from tandem.core.messages import Region
from tandem.ports import TAIL_BYTES


class DeviceMemory:
    """Fits `ports.Memory`: [layers, num_pages, block_bytes] bytes of one device, zero until written, and the tail.

    Its addresses are the device's: only a transport that knows them can move these pages (Mooncake built for CUDA).
    On the CPU it is ordinary memory, for tests.
    """

    memfd = None

    def __init__(self, layers: tuple[LayerId, LayerId], num_pages: int, block_bytes: int, device: torch.device) -> None:
        first, last = layers
        size = (last - first) * num_pages * block_bytes
        try:
            self._bytes = torch.zeros(size + TAIL_BYTES, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"num-pages is {num_pages}: no room on {device} for its {size} bytes; give less"
            ) from error
        self.pages = self._bytes[:size].view(last - first, num_pages, block_bytes)
        self.tail = DeviceTail(self._bytes[size:])
        self.region = Region(
            base=self._bytes.data_ptr(),
            first_layer=first,
            last_layer=last,
            num_pages=num_pages,
            block_bytes=block_bytes,
        )

    def block(self, layer: LayerId, page: PageId) -> memoryview:
        """A copy of the bytes of one page of one layer, in host memory. Raises IndexError for what is not there."""
        region = self.region
        if not (region.first_layer <= layer < region.last_layer and 0 <= page < region.num_pages):
            raise IndexError(f"no block (layer {layer}, page {page}) in {region}")
        copied: memoryview = self.pages[layer - region.first_layer, page].cpu().numpy().data
        return copied.toreadonly()


class DeviceTail:
    """Fits `kvtransfer.tail.TailBytes`: the bytes behind the pages, copied from and to the device."""

    def __init__(self, there: Tensor) -> None:
        self._there = there

    def __len__(self) -> int:
        return len(self._there)

    def __getitem__(self, where: slice) -> bytes:
        return bytes(self._there[where].cpu().numpy().data)

    def __setitem__(self, where: slice, what: bytes) -> None:
        self._there[where] = torch.frombuffer(bytearray(what), dtype=torch.uint8).to(self._there.device)


class PinnedPages:
    """Fits `ports.HostCopies`: [num_pages, layers, block_bytes] bytes of page-locked memory, which the device copies
    from and to at full speed. A copy is done when the call returns, on a stream of its own.
    """

    def __init__(self, memory: DeviceMemory, num_pages: int) -> None:
        layers, _, block_bytes = memory.pages.shape
        self._on_device = memory.pages.is_cuda
        self._here = memory.pages
        try:
            self._pages = torch.zeros(num_pages, layers, block_bytes, dtype=torch.uint8, pin_memory=self._on_device)
        except RuntimeError as error:
            raise ConfigError(
                f"host-pages is {num_pages}: no page-locked memory for them, {error}; give less"
            ) from error
        self._stream = torch.cuda.Stream(self._here.device) if self._on_device else None

    def save(self, pages: Sequence[PageId], host_pages: Sequence[PageId]) -> None:
        """Copy all layers of pages[i] of the pool to host_pages[i]."""
        self._copy([(self._page(there), self._here[:, here]) for here, there in zip(pages, host_pages, strict=True)])

    def load(self, host_pages: Sequence[PageId], pages: Sequence[PageId]) -> None:
        """Copy all layers of host_pages[i] back, to pages[i] of the pool."""
        self._copy([(self._here[:, here], self._page(there)) for there, here in zip(host_pages, pages, strict=True)])

    def _page(self, host_page: PageId) -> Tensor:
        if not 0 <= host_page < len(self._pages):
            raise IndexError(f"no host page {host_page}: there are {len(self._pages)}")
        return self._pages[host_page]

    def _copy(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Each second one to the first; forwards that were queued before have ended, as `run` waits for them."""
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
