"""Hidden states between a device and page-locked host memory, copied on a stream of their own."""

from typing import Protocol

import torch
from torch import Tensor


class WayOut(Protocol):
    """Where a stage's outputs go."""

    def fence(self) -> None:
        """What is queued on the current stream from now on begins when the last output has been read."""
        ...

    def put(self, x: Tensor) -> memoryview:
        """What `run` returns for hidden states [tokens, hidden]."""
        ...


class WayIn(Protocol):
    """Where the outputs of the stage before come from."""

    def take(self, payload: memoryview) -> Tensor:
        """Hidden states [tokens, hidden] on the device, of what `run` is given."""
        ...


class Outbox:
    """The way out. The copy waits for the forward, and the next forward for the copy (`fence`)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_device = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_device else None
        self._copied: torch.cuda.Event | None = None
        self._host = torch.empty(0, dtype=torch.uint8)

    def fence(self) -> None:
        """What is queued on the current stream from now on begins when the last output has been read."""
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)

    def put(self, x: Tensor) -> memoryview:
        """The bytes of an output, valid until the next call."""
        there = x.contiguous().view(torch.uint8).reshape(-1)
        if self._host.numel() < there.numel():
            self._host = torch.empty(there.numel(), dtype=torch.uint8, pin_memory=self._on_device)
        here = self._host[: there.numel()]
        if self._stream is None:
            here.copy_(there)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                here.copy_(there, non_blocking=True)
                there.record_stream(self._stream)
                self._copied = self._stream.record_event()
            self._copied.synchronize()
        flat: memoryview = here.numpy().data
        return flat


class Inbox:
    """The way in."""

    def __init__(self, device: torch.device, hidden: int, dtype: torch.dtype) -> None:
        self._device = device
        self._hidden = hidden
        self._dtype = dtype
        self._host = torch.empty(0, dtype=torch.uint8)

    def take(self, payload: memoryview) -> Tensor:
        """Hidden states [tokens, hidden] on the device. The sender's buffer is not needed when it returns."""
        if self._host.numel() < payload.nbytes:
            self._host = torch.empty(payload.nbytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        here = self._host[: payload.nbytes]
        here.numpy().data[:] = payload.cast("B")
        # `run` waits for its forward, so the next payload cannot overwrite this one before it has been copied
        there = here.to(self._device, non_blocking=True) if self._device.type == "cuda" else here.clone()
        return there.view(self._dtype).view(-1, self._hidden)
