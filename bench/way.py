"""The production way of a layer to another process: Post, Posting with its worker, a transport, and Wrote."""

from collections.abc import Sequence
from queue import SimpleQueue

from bench.ends import End
from kvtransfer.edges import Edges
from kvtransfer.posting import Posting, Wrote
from tandem.core.effects import Post
from tandem.core.events import Written
from tandem.core.ids import LayerId, PageId, RequestId, Room
from tandem.core.messages import Hello
from tandem.ports import Transport

ROOM = Room(RequestId(1), 1)
MOVED_S = 120.0
"""The longest that a write may take: Mooncake gives one up after a minute."""

Pages = Sequence[tuple[int, int]]
"""(source page, destination page) of what is written."""


class Way:
    """To one rank of one group. Several layers may be on their way; they arrive in order."""

    def __init__(self, near: End, transport: Transport, peer: Hello) -> None:
        self._transport = transport
        self._peer = peer
        self._wrote: SimpleQueue[Wrote] = SimpleQueue()
        edges = Edges(lambda: transport)
        edges.open(peer.group)
        self._posting = Posting(
            edges, near.memory, lambda group, rank: peer, self._wrote.put, lambda hello, result: None
        )

    def connect(self, deadline_s: float) -> None:
        """Raises ConnectionError."""
        self._transport.connect(self._peer, deadline_s)

    def post(self, layer: int, pages: Pages) -> None:
        """Returns at once. `wait` for it later."""
        blocks = tuple((PageId(source), PageId(destination)) for source, destination in pages)
        self._posting.post(Post(layer, ROOM, self._peer.group, self._peer.rank, LayerId(layer), blocks))

    def wait(self, posts: int = 1) -> None:
        """Until so many have landed. Raises ConnectionError if one did not."""
        results = [self._wrote.get(timeout=MOVED_S).moved.result for _ in range(posts)]
        if failed := [result.value for result in results if result is not Written.OK]:
            raise ConnectionError(f"writes ended {', '.join(failed)}")

    def write(self, layer: int, pages: Pages) -> None:
        """One layer, and wait. Raises ConnectionError."""
        self.post(layer, pages)
        self.wait()
