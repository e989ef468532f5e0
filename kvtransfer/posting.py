"""Turns Post effects into writes: one worker thread per peer rank, so that nobody waits for a slow one."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvtransfer.checksums import digests
from kvtransfer.edges import Edges
from tandem.core.effects import Post
from tandem.core.events import Moved, Written
from tandem.core.ids import LayerId, PageId, RankId, Room
from tandem.core.messages import Hello, Region
from tandem.ports import Memory

MAX_QUEUED = 1 << 18
"""Posts waiting for one peer; one more fails at once. Each moves a page or more: the pool bounds them long before."""
WRITE_DEADLINE_S = 30.0
"""For one post: the failure model's transfer timer."""
IDLE_S = 30.0
"""A worker without work ends after this; the next post starts another."""

HelloOf = Callable[[str, RankId], Hello | None]


@dataclass(frozen=True, slots=True)
class Wrote:
    """A post is over: what the core hears of it, and when it was taken up, handed to the transport, and over.

    Microseconds since 1970, for people; 0: that did not happen.
    """

    moved: Moved
    taken_us: int = 0
    begun_us: int = 0
    ended_us: int = 0


class Posting:
    """Accepts posts from the tick loop without ever blocking it. Each ticket gets exactly one Wrote.

    `hello_of` names the open session of a peer, None when there is none, and is asked on any thread: before each write
    once more, because a successor on the same address would be written into without complaint. `wrote` is called on
    worker threads, and on the caller's own when nothing was posted: it must only queue. `judge` hears, before that, how
    each write ended that was begun. FAILED_SETTLED means that nothing of the post can land any more.
    """

    def __init__(
        self,
        edges: Edges,
        memory: Memory,
        hello_of: HelloOf,
        wrote: Callable[[Wrote], None],
        judge: Callable[[Hello, Written], None],
    ) -> None:
        self._edges = edges
        self._memory = memory
        self._region = memory.region
        self._hello_of = hello_of
        self._wrote = wrote
        self._judge = judge
        self._workers: dict[Hello, _Worker] = {}  # each session of a peer has its own
        self._closed = False

    def post(self, effect: Post) -> None:
        """Queue a write. Fails as settled when the peer is not open, its queue full, or a page outside a region."""
        hello = self._hello_of(effect.peer, effect.rank)
        if hello is None or not self._fits(effect, hello) or not self._queue(effect, hello):
            self._wrote(_unwritten(effect))

    def drop(self, room: Room) -> None:
        """Fail the posts of a room that have not begun."""
        for worker in self._workers.values():
            worker.drop(room)

    def abandon(self, group: str) -> None:
        """Fail the posts to a group that have not begun. Begun ones end before the group's fence does."""
        for hello, worker in self._workers.items():
            if hello.group == group:
                worker.stop()

    def close(self, deadline_s: float) -> bool:
        """Fail what waits and let begun writes end. False if one is still running after the deadline."""
        self._closed = True
        end = time.monotonic() + deadline_s
        for worker in self._workers.values():
            worker.stop()
        return all(worker.join(end - time.monotonic()) for worker in self._workers.values())

    def _fits(self, post: Post, hello: Hello) -> bool:
        """Whether every page lies inside its region: the peer chose the destinations."""
        mine, theirs = self._region, hello.region
        return mine.block_bytes == theirs.block_bytes and all(
            _holds(mine, post.layer, source) and _holds(theirs, post.layer, destination)
            for source, destination in post.blocks
        )

    def _queue(self, post: Post, hello: Hello) -> bool:
        if self._closed:
            return False
        worker = self._workers.get(hello)
        if worker is not None and worker.offer(post):
            return True
        if worker is not None and not worker.ended:
            return False
        self._workers = {key: one for key, one in self._workers.items() if not one.ended}
        self._workers[hello] = _Worker(self._perform, self._wrote, hello, post)
        return True

    def _perform(self, post: Post, hello: Hello) -> None:
        """On a worker's thread. A fence waits for the write, and for its end to be told."""
        taken_us = _now_us()
        with self._edges.using(hello.group) as transport:
            if transport is None or self._hello_of(hello.group, hello.rank) != hello:
                self._wrote(_unwritten(post))
                return
            result = Written.FAILED_UNSETTLED  # what is true if the write raises
            sums = digests(self._memory, post.layer, (post.blocks[place][0] for place in post.sampled))
            begun_us = _now_us()
            try:
                result = transport.write(hello, self._addressed(post, hello), WRITE_DEADLINE_S)
            finally:
                self._judge(hello, result)
                self._wrote(Wrote(Moved(post.ticket, result, sums), taken_us, begun_us, _now_us()))

    def _addressed(self, post: Post, hello: Hello) -> list[tuple[int, int, int]]:
        """The blocks as (source address, destination address, bytes)."""
        mine, theirs, size = self._region, hello.region, self._region.block_bytes
        return [
            (mine.address(post.layer, source), theirs.address(post.layer, destination), size)
            for source, destination in post.blocks
        ]


class _Worker:
    """The queue of one peer's session, and the thread that empties it."""

    def __init__(
        self, perform: Callable[[Post, Hello], None], wrote: Callable[[Wrote], None], hello: Hello, first: Post
    ) -> None:
        self.ended = False
        self._perform = perform
        self._wrote = wrote
        self._hello = hello
        self._waiting = deque([first])
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"post {hello.group}/{hello.rank}", daemon=True)
        self._thread.start()

    def offer(self, post: Post) -> bool:
        """Queue a post; False if the queue is full or the worker has ended."""
        with self._changed:
            if self.ended or len(self._waiting) >= MAX_QUEUED:
                return False
            self._waiting.append(post)
            self._changed.notify()
        return True

    def drop(self, room: Room) -> None:
        """Fail what waits of a room."""
        with self._changed:
            dropped = [post for post in self._waiting if post.room == room]
            if dropped:
                self._waiting = deque(post for post in self._waiting if post.room != room)
        self._fail(dropped)

    def stop(self) -> None:
        """Fail what waits; the thread ends after the write that it is at."""
        with self._changed:
            self.ended = True
            dropped = list(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        self._fail(dropped)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; whether it has ended."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _fail(self, posts: list[Post]) -> None:
        for post in posts:
            self._wrote(_unwritten(post))

    def _run(self) -> None:
        while (post := self._next()) is not None:
            self._perform(post, self._hello)

    def _next(self) -> Post | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.ended, IDLE_S)
            if self._waiting:
                return self._waiting.popleft()
            self.ended = True
            return None


def _holds(region: Region, layer: LayerId, page: PageId) -> bool:
    return region.first_layer <= layer < region.last_layer and 0 <= page < region.num_pages


def _unwritten(post: Post) -> Wrote:
    return Wrote(Moved(post.ticket, Written.FAILED_SETTLED))


def _now_us() -> int:
    return time.time_ns() // 1000
