"""The replicated page allocator: at every tick, all ranks of a group give the same page numbers to the same room."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tandem.core.errors import IllegalTransition
from tandem.core.ids import PageId, Room
from tandem.core.journal import Journal
from tandem.core.prefixes import TOKEN_BYTES, Node, PrefixTree, path


@dataclass(slots=True)
class Holding:
    """What one room has. Nobody else reads or writes its private pages."""

    life: int  # of the prefix cache, when the room began to hold something
    private: dict[PageId, None] = field(default_factory=dict)
    prefix: Node | None = None  # the end of what it shares
    quarantined: bool = False


NOTHING = Holding(0)
"""Of a room that holds nothing. For reading only."""


class PagePool:
    """Free pages as ascending runs, so that a room's pages tend to be neighbours and coalesce on the wire.

    Every page is free; or private to one room; or quarantined for one room, as a writer may still touch it; or cached:
    shared by the rooms that use its prefix, none perhaps, and never written again.
    """

    def __init__(self, num_pages: int, page_size: int, *, prefix_cache: bool = True) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.free = num_pages
        self.freed_at = 0  # counts what may make pages available: tells who waits that trying again may help
        self.published = 0  # counts what may have become new to the cache
        self._runs: list[tuple[int, int]] = [(0, num_pages)] if num_pages else []  # [first, last), ascending
        self._holdings: dict[Room, Holding] = {}
        self._owned = 0
        self._quarantined = 0
        self._prefix_cache = prefix_cache
        self._tree = PrefixTree(page_size)
        self._given: list[PageId] = []  # since the last `drain_given`

    @property
    def available(self) -> int:
        """Pages that `allocate` can give: free ones, and cached ones that nobody uses."""
        return self.free + self._tree.idle

    @property
    def news(self) -> tuple[int, int]:
        """Changes whenever one who was refused pages may get them now: some came back, or a prefix became known."""
        return self.freed_at, self.published

    def keep_journal(self) -> Journal:
        """Of what its prefix cache holds, from now on; before anything is cached. It changes no decision."""
        assert self._tree.pages == 0
        self._tree.journal = journal = Journal()
        return journal

    # private pages

    def allocate(self, room: Room, count: int) -> tuple[PageId, ...]:
        """Give `count` more pages to a room, of the least recently used prefixes if too few are free.

        Raises IllegalTransition when they are not there: look at `available` first.
        """
        if count > self.available or self._holdings.get(room, NOTHING).quarantined:
            raise IllegalTransition(f"{count} pages for {room}: {self.available} are available")
        if count > self.free:
            self._put_back(self._tree.evict(count - self.free))
        pages = self._take(count)
        self._holding(room).private.update(dict.fromkeys(pages))
        self._owned += count
        self._given += pages
        return tuple(pages)

    def _holding(self, room: Room) -> Holding:
        holding = self._holdings.get(room)
        if holding is None:
            holding = self._holdings[room] = Holding(self._tree.life)
        return holding

    def _take(self, count: int) -> list[PageId]:
        pages: list[PageId] = []
        while len(pages) < count:
            first, last = self._runs.pop(index := self._best_run(count - len(pages)))
            taken = min(count - len(pages), last - first)
            pages.extend(map(PageId, range(first, first + taken)))
            if first + taken < last:
                self._runs.insert(index, (first + taken, last))
        self.free -= count
        return pages

    def _best_run(self, count: int) -> int:
        """Index of the first run that holds `count` pages, else of the longest."""
        for index, (first, last) in enumerate(self._runs):
            if last - first >= count:
                return index
        lengths = [last - first for first, last in self._runs]
        return lengths.index(max(lengths))

    def release(self, room: Room) -> None:
        """The room's pages, private or quarantined, are free: no forward uses them and every writer is quiet.

        What it shares stays cached.
        """
        self.freed_at += 1
        holding = self._holdings.pop(room, None)
        if holding is None:
            return
        if holding.quarantined:
            self._quarantined -= len(holding.private)
        else:
            self._owned -= len(holding.private)
        self._put_back(list(holding.private))
        if holding.prefix is not None:
            self._put_back(self._tree.let_go(holding.prefix))

    def quarantine(self, room: Room) -> None:
        """The room failed, but a writer may still touch its pages: nobody gets them before `release`."""
        holding = self._holding(room)
        if not holding.quarantined:
            holding.quarantined = True
            self._owned -= len(holding.private)
            self._quarantined += len(holding.private)

    def _put_back(self, pages: list[PageId]) -> None:
        for first, last in _runs_of(pages):
            self._put_back_run(first, last)
        self.free += len(pages)

    def _put_back_run(self, first: int, last: int) -> None:
        index = bisect_left(self._runs, (first, last))
        if index < len(self._runs) and self._runs[index][0] == last:
            last = self._runs.pop(index)[1]
        if index and self._runs[index - 1][1] == first:
            index -= 1
            first = self._runs.pop(index)[0]
        self._runs.insert(index, (first, last))

    # shared pages

    def reuse(self, room: Room, salt: str, tokens: bytes, most: int) -> tuple[PageId, ...]:
        """Share the cached pages of the longest known prefix, at most `most`, with a room until its release.

        Raises IllegalTransition if the room holds anything yet.
        """
        if not self._prefix_cache:
            return ()
        if room in self._holdings:
            raise IllegalTransition(f"{room} holds pages: the prefix comes first")
        prefix = self._tree.follow(None, salt, tokens, most)
        if prefix is None:
            return ()
        self._holding(room).prefix = prefix
        pages = path(prefix)
        self._given.append(pages[-1])
        return pages

    def share(
        self, room: Room, salt: str, tokens: bytes, most: int, fits: Callable[[int], bool]
    ) -> tuple[PageId, ...] | None:
        """Like `reuse`, if that many pages leave what `fits`; else None, and the room holds nothing.

        A share that waits would keep pages from others.
        """
        hit = self.reuse(room, salt, tokens, most)
        if fits(len(hit)):
            return hit
        if hit:
            self.release(room)
        return None

    def publish(
        self, room: Room, salt: str, tokens: bytes, table: tuple[PageId, ...], *, leaving: bool = False
    ) -> None:
        """Others may share these pages of the room from now on: table[i] holds tokens[i * page_size :].

        Tokens are whole pages. Where others were first, the room's own pages stay private, and so do those behind them
        unless it is `leaving`: then it uses theirs too, until its release in this step. A room that goes on must not
        hold two copies, as it could then lack the pages to grow. What it holds since before a flush is never
        published. Raises IllegalTransition for pages that are not its own.
        """
        self.published += 1
        if not self._prefix_cache:
            return
        count, rest = divmod(len(tokens), self.page_size * TOKEN_BYTES)
        holding = self._holdings.get(room)
        if holding is None or holding.quarantined or rest or len(table) < count:
            raise IllegalTransition(f"{room} cannot publish {len(tokens)} bytes of tokens in {len(table)} pages")
        if (
            count
            and holding.life == self._tree.life
            and (leaving or not self._tree.goes_on(holding.prefix, salt, tokens))
        ):
            self._publish(holding, salt, tokens, table[:count])

    def _publish(self, holding: Holding, salt: str, tokens: bytes, table: tuple[PageId, ...]) -> None:
        prefix = holding.prefix = self._tree.follow(holding.prefix, salt, tokens, len(table))
        fresh = table[prefix.end if prefix is not None else 0 :]
        if not fresh:
            return
        if any(page not in holding.private for page in fresh):
            raise IllegalTransition(f"pages are published that are not the room's own: {fresh}")
        holding.prefix = self._tree.grow(prefix, salt, tokens, fresh)
        self._owned -= len(fresh)
        for page in fresh:
            del holding.private[page]

    def flush(self) -> None:
        """Forget all cached prefixes. Pages of one that is used are free when its last user has gone."""
        self._put_back(self._tree.flush())
        self.freed_at += 1

    # who has what

    def held(self, room: Room) -> tuple[PageId, ...]:
        """The pages that nobody else may write: private, quarantined, or shared by this room."""
        holding = self._holdings.get(room, NOTHING)
        shared = path(holding.prefix) if holding.prefix is not None else ()
        return (*shared, *holding.private)

    def writable(self, room: Room) -> tuple[PageId, ...]:
        """The pages that this room alone uses: forwards and transfers for it may write into them."""
        return tuple(self._holdings.get(room, NOTHING).private)

    def returned_by(self, rooms: Sequence[Room]) -> list[int]:
        """Pages that become available when each room has gone, one after the other in this order."""
        holdings = [self._holdings.get(room, NOTHING) for room in rooms]
        shared = self._tree.returned_by(holding.prefix for holding in holdings)
        return [len(holding.private) + pages for holding, pages in zip(holdings, shared, strict=True)]

    def drain_given(self) -> list[PageId]:
        """What the digest needs to see of page numbers, since the last call and in order.

        Pages given out, and the last page of each prefix shared: it stands for the whole prefix.
        """
        given, self._given = self._given, []
        return given

    def counts(self) -> dict[str, int]:
        """Pages by state."""
        return {"free": self.free, "owned": self._owned, "cached": self._tree.pages, "quarantined": self._quarantined}

    def check(self) -> None:
        """Conservation, cheap enough for every tick: free + owned + cached + quarantined = total."""
        if sum(self.counts().values()) != self.num_pages or not 0 <= self._tree.idle <= self._tree.pages:
            raise IllegalTransition(f"pages are not conserved: {self.counts()} of {self.num_pages}")

    def audit(self) -> None:
        """The same page by page, for tests and the simulator: each page is in exactly one place."""
        holdings = self._holdings.values()
        seen = [page for first, last in self._runs for page in range(first, last)]
        seen += [page for holding in holdings for page in holding.private]
        seen += self._tree.audit(holding.prefix for holding in holdings if holding.prefix is not None)
        if sorted(seen) != list(range(self.num_pages)):
            raise IllegalTransition(f"pages are lost or doubled: {self.counts()} of {self.num_pages}")
        self.check()


def _runs_of(pages: Sequence[PageId]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for page in sorted(pages):
        if runs and runs[-1][1] == page:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs
