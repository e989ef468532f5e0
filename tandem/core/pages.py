"""The replicated page allocator: at every tick, all ranks of a group give the same page numbers to the same room."""

from bisect import bisect_left

from tandem.core.errors import IllegalTransition
from tandem.core.ids import PageId, Room


class PagePool:
    """Free pages as ascending runs, so that a room's pages tend to be neighbours and coalesce on the wire.

    Every page is free, owned by one room, or quarantined for one room: a writer may still touch it.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.free = num_pages
        self.freed_at = 0  # counts releases: tells a waiting request that trying again may help
        self._runs: list[tuple[int, int]] = [(0, num_pages)] if num_pages else []  # [first, last), ascending
        self._owned: dict[Room, list[PageId]] = {}
        self._quarantined: dict[Room, list[PageId]] = {}
        self._owned_count = 0
        self._quarantined_count = 0
        self._given: list[PageId] = []  # since the last `drain_given`

    def allocate(self, room: Room, count: int) -> tuple[PageId, ...]:
        """Give `count` more pages to a room. Raises IllegalTransition when they are not there: look at `free` first."""
        if count > self.free or room in self._quarantined:
            raise IllegalTransition(f"{count} pages for {room}: {self.free} are free")
        pages: list[PageId] = []
        while len(pages) < count:
            first, last = self._runs.pop(index := self._best_run(count - len(pages)))
            taken = min(count - len(pages), last - first)
            pages.extend(PageId(page) for page in range(first, first + taken))
            if first + taken < last:
                self._runs.insert(index, (first + taken, last))
        self._owned.setdefault(room, []).extend(pages)
        self._owned_count += count
        self._given += pages
        self.free -= count
        return tuple(pages)

    def drain_given(self) -> list[PageId]:
        """Pages given out since the last call, in order: what the digest needs to see of page numbers."""
        given, self._given = self._given, []
        return given

    def _best_run(self, count: int) -> int:
        """Index of the first run that holds `count` pages, else of the longest."""
        lengths = [last - first for first, last in self._runs]
        for index, length in enumerate(lengths):
            if length >= count:
                return index
        return lengths.index(max(lengths))

    def held(self, room: Room) -> tuple[PageId, ...]:
        """The pages that nobody else may touch: owned or quarantined by this room."""
        return (*self._owned.get(room, ()), *self._quarantined.get(room, ()))

    def release(self, room: Room) -> None:
        """The room's pages, owned or quarantined, are free: no forward uses them and every writer is quiet."""
        owned = self._owned.pop(room, [])
        quarantined = self._quarantined.pop(room, [])
        self._owned_count -= len(owned)
        self._quarantined_count -= len(quarantined)
        for page in owned + quarantined:
            self._put_back(page)
        self.free += len(owned) + len(quarantined)
        self.freed_at += 1

    def quarantine(self, room: Room) -> None:
        """The room failed, but a writer may still touch its pages: nobody gets them before `release`."""
        pages = self._owned.pop(room, [])
        self._owned_count -= len(pages)
        self._quarantined_count += len(pages)
        self._quarantined.setdefault(room, []).extend(pages)

    def _put_back(self, page: PageId) -> None:
        index = bisect_left(self._runs, (page, page))
        first, last = page, page + 1
        if index < len(self._runs) and self._runs[index][0] == last:
            last = self._runs.pop(index)[1]
        if index and self._runs[index - 1][1] == first:
            index -= 1
            first = PageId(self._runs.pop(index)[0])
        self._runs.insert(index, (first, last))

    def check(self) -> None:
        """Conservation, cheap enough for every tick: free + owned + quarantined = total."""
        if self.free + self._owned_count + self._quarantined_count != self.num_pages:
            raise IllegalTransition(f"pages are not conserved: {self.counts()} of {self.num_pages}")

    def audit(self) -> None:
        """The same page by page, for tests and the simulator: each page is in exactly one place."""
        seen = [page for first, last in self._runs for page in range(first, last)]
        seen += [page for pages in (*self._owned.values(), *self._quarantined.values()) for page in pages]
        if sorted(seen) != list(range(self.num_pages)):
            raise IllegalTransition(f"pages are lost or doubled: {self.counts()} of {self.num_pages}")
        self.check()

    def counts(self) -> dict[str, int]:
        """Pages by state."""
        return {"free": self.free, "owned": self._owned_count, "quarantined": self._quarantined_count}
