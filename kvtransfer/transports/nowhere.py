"""The transport of a rank that has no peers."""

from collections.abc import Sequence

from kvtransfer.transports.blocks import Block
from tandem.core.events import Written
from tandem.core.messages import Hello


class NoTransport:
    """ports.Transport that reaches nobody: a colocated rank's pages are written by its own forwards only."""

    kind = "none"
    endpoint = ""

    def register(self, base: int, length: int) -> None:
        """Nobody will write there."""

    def connect(self, peer: Hello, deadline_s: float) -> None:
        """Raises ConnectionError."""
        raise ConnectionError(f"no way leads to {peer.group} rank {peer.rank}")

    def write(self, peer: Hello, blocks: Sequence[Block], deadline_s: float) -> Written:
        """Nothing is written."""
        return Written.FAILED_SETTLED

    def close(self) -> None:
        """There is nothing to close."""
