"""What an operator can change while a group serves: replicated, and changed by frames only."""

from tandem.core.config import Limits
from tandem.core.inputs import Control, Knobs, Order

BUCKET = 1024
"""Tokens per entry of a chunk table."""


class Controls:
    """Owned by the scheduler; roles read it."""

    def __init__(self, limits: Limits) -> None:
        self.paused = False
        self.draining = False
        self._most_prefill_tokens = limits.max_prefill_tokens  # what buffers between stages were made for
        self.max_prefill_tokens = limits.max_prefill_tokens
        self.chunked_prefill_size = limits.chunked_prefill_size
        self.chunk_table: tuple[int, ...] = ()

    def on_control(self, control: Control) -> None:
        """Take an order. Some concern the role or its couriers, not what is kept here."""
        match control.order:
            case Order.PAUSE:
                self.paused = True
            case Order.DRAIN:
                self.draining = True
            case Order.RESUME:
                self.paused = self.draining = False
            case Order.FLUSH | Order.RELEASE:
                pass

    def on_knobs(self, knobs: Knobs) -> None:
        """Take new values; what is not given stays. A tick never gets more tokens than the group started with."""
        if knobs.max_prefill_tokens is not None:
            self.max_prefill_tokens = min(knobs.max_prefill_tokens, self._most_prefill_tokens)
        if knobs.chunked_prefill_size is not None:
            self.chunked_prefill_size = knobs.chunked_prefill_size
        if knobs.chunk_table is not None:
            self.chunk_table = knobs.chunk_table

    def chunk_tokens(self, position: int) -> int:
        """Tokens that a chunk beginning at `position` may have: later ones attend to more, so they are shorter."""
        if not self.chunk_table:
            return self.chunked_prefill_size
        bucket = min(position // BUCKET, len(self.chunk_table) - 1)
        return min(self.chunked_prefill_size, self.chunk_table[bucket])
