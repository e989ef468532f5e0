"""What routers hear of a prefix cache is what it holds: after any operations, lost messages and new beginnings."""

import random
from collections.abc import Iterator

import pytest

from router.index import Hashed, Index
from tandem.core import journal as journals
from tandem.core.ids import PageId, RequestId, Room
from tandem.core.journal import Journal, Telling, chain, numbers, root_hash
from tandem.core.messages import Cached
from tandem.core.pages import PagePool
from tandem.core.prefixes import packed, path

SIZE = 2
SALTS = ("", "tenant", "tenant2")
ROOMS = [Room(RequestId(number), 1) for number in range(1000)]


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that pieces, an overflowing log and an impatient sender are met all the time."""
    monkeypatch.setattr(journals, "PIECE_CHANGES", 3)
    monkeypatch.setattr(journals, "LOG_CHANGES", 8)
    monkeypatch.setattr(journals, "AHEAD_CHANGES", 10)


def pages_of(prompt: list[int], salt: str = "") -> list[int]:
    return Hashed(prompt, salt).pages(SIZE)


class Router:
    """One router's index, with a way to it that may lose what is said."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.index = Index()
        self.telling = Telling(journal)
        self.lost = 0

    def connect_anew(self) -> None:
        self.index.start_over()
        self.telling = Telling(self._journal)

    def hear(self, lose: Iterator[bool]) -> None:
        """All that may be said before the next Watch."""
        while (said := self.telling.next()) is not None:
            self.telling.told(said)
            assert len(said.stored) + len(said.removed) <= journals.PIECE_CHANGES
            if next(lose):
                self.lost += 1
            else:
                self.index.on_cached(said)

    def watch(self) -> None:
        self.telling.heard(self.index.number)

    def catch_up(self) -> None:
        """Nothing is lost any more, and seconds pass."""
        never = iter(lambda: False, True)
        for _ in range(60):
            self.watch()
            self.hear(never)


class Group:
    """A pool under random operations, as in test_pages; what its tree holds is read from the tree itself."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pool = PagePool(self.random.choice((3, 12, 40)), SIZE)
        self.journal = self.pool.keep_journal()
        self._rooms: dict[Room, tuple[str, list[int], list[PageId]]] = {}
        self._made = 0

    def step(self) -> None:
        act = self.random.choices((self.arrive, self.grow, self.leave, self.pool.flush), (5, 10, 4, 0.3))[0]
        act()

    def arrive(self) -> None:
        room, self._made = ROOMS[self._made % len(ROOMS)], self._made + 1
        salt = self.random.choice(SALTS)
        text = self.random.choices((1, 2), weights=(5, 1), k=self.random.randrange(16))
        self._rooms[room] = salt, text, list(self.pool.reuse(room, salt, packed(text), self.random.randrange(8)))

    def grow(self) -> None:
        """A room takes pages and publishes what fits into them."""
        if not self._rooms:
            return
        room = self.random.choice(list(self._rooms))
        salt, text, table = self._rooms[room]
        wanted = min(self.random.randint(0, 4), self.pool.available)
        table += self.pool.allocate(room, wanted)
        text += self.random.choices((1, 2), k=self.random.randrange(4))
        full = min(len(table), len(text) // SIZE)
        if table:
            content = packed(text[: full * SIZE])
            self.pool.publish(room, salt, content, tuple(table[:full]), leaving=self.random.random() < 0.3)

    def leave(self) -> None:
        if self._rooms:
            room = self.random.choice(list(self._rooms))
            del self._rooms[room]
            self.pool.release(room)

    def holds(self) -> set[int]:
        """Computed anew from the tokens in the tree."""
        found: set[int] = set()
        nodes = [(root, root_hash(salt)) for salt, root in self.pool._tree._roots.items()]
        while nodes:
            node, parent = nodes.pop()
            hashes = chain(parent, bytes(node.tokens), SIZE * 4)
            found.update(numbers(hashes))
            nodes += [(child, hashes[-1] if hashes else parent) for child in node.children.values()]
        return found


@pytest.mark.parametrize("seed", range(30))
def test_after_any_operations_every_router_knows_what_is_cached(seed: int):
    group = Group(seed)
    chance = random.Random(seed)
    lossy = seed % 3 > 0
    losing = iter(lambda: lossy and chance.random() < 0.2, None)
    routers = [Router(group.journal) for _ in range(3)]
    for _ in range(400):
        group.step()
        for router in routers:
            if chance.random() < 0.5:
                router.hear(losing)
            if chance.random() < 0.2:
                router.watch()
            if chance.random() < 0.01:
                router.connect_anew()
        if chance.random() < 0.01:
            routers[-1] = Router(group.journal)  # it comes late
    assert len(group.journal) == len(group.holds())
    for router in routers:
        router.catch_up()
        assert router.index.holds() == group.holds()
    assert not lossy or sum(router.lost for router in routers), "nothing was lost: the test tests nothing"


@pytest.mark.parametrize("seed", range(10))
def test_without_losses_a_router_is_exact_at_once(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journals, "AHEAD_CHANGES", 10**9)
    group = Group(seed)
    router = Router(group.journal)
    never = iter(lambda: False, True)
    for _ in range(400):
        group.step()
        router.hear(never)
        assert router.index.holds() == group.holds()


def test_a_new_epoch_begins_with_nothing():
    old, new = Group(1), Group(2)
    for group in (old, new):
        for _ in range(60):
            group.step()
    router = Router(old.journal)
    router.catch_up()
    assert router.index.holds() == old.holds() != set()
    router._journal = new.journal
    router.connect_anew()
    assert router.index.holds() == set()
    router.catch_up()
    assert router.index.holds() == new.holds()


def test_a_journal_changes_no_decision():
    """Pools with and without one give the same pages for the same calls."""
    with_one, without = Group(7), Group(7)
    without.pool._tree.journal = None
    for _ in range(400):
        with_one.step()
        without.step()
        assert with_one.pool.drain_given() == without.pool.drain_given()


def test_a_gap_is_not_taken():
    index = Index()
    index.on_cached(Cached(0, 2, (1, 2), ()))
    index.on_cached(Cached(3, 4, (4,), (1,)))
    assert (index.number, index.holds()) == (2, {1, 2})


def test_what_begins_anew_replaces_all():
    index = Index()
    index.on_cached(Cached(0, 2, (1, 2), ()))
    index.on_cached(Cached(0, 9, (3,), ()))
    assert (index.number, index.holds()) == (9, {3})


def test_a_router_that_does_not_answer_is_told_no_more():
    group = Group(3)
    for _ in range(300):
        group.step()
    router = Router(group.journal)
    router.hear(iter(lambda: True, None))
    assert 0 < router.lost <= journals.AHEAD_CHANGES


# overlap


def test_the_pages_of_a_prompt_are_found_up_to_where_it_differs():
    index = Index()
    index.on_cached(Cached(0, 3, tuple(pages_of([1, 2, 3, 4, 5, 6])), ()))
    for prompt, pages in (([1, 2, 3, 4, 5, 6, 7, 8], 3), ([1, 2, 3, 4, 9, 9], 2), ([1, 2, 3], 1), ([9, 2], 0), ([], 0)):
        assert index.overlap(pages_of(prompt)) == pages


def test_prompts_of_different_salts_have_nothing_in_common():
    index = Index()
    index.on_cached(Cached(0, 2, tuple(pages_of([1, 2, 3, 4], "alice")), ()))
    assert index.overlap(pages_of([1, 2, 3, 4], "alice")) == 2
    assert index.overlap(pages_of([1, 2, 3, 4], "bob")) == 0
    assert index.overlap(pages_of([1, 2, 3, 4])) == 0


def test_a_prompt_on_its_way_counts_as_there_until_it_is_gone():
    index, pages = Index(), pages_of([1, 2, 3, 4])
    index.coming(pages)
    index.coming(pages[:1])
    assert index.overlap(pages) == 2
    index.gone(pages)
    assert index.overlap(pages) == 1
    index.gone(pages[:1])
    assert index.overlap(pages) == 0


def test_the_hashes_of_the_router_are_those_of_the_pool():
    pool = PagePool(8, SIZE)
    journal = pool.keep_journal()
    table = pool.allocate(ROOMS[0], 3)
    pool.publish(ROOMS[0], "s", packed([1, 2, 3, 4, 5, 6]), table)
    assert journal.everything() == pages_of([1, 2, 3, 4, 5, 6], "s")
    prefix = pool._tree.follow(None, "s", packed([1, 2, 3, 4, 5, 6]), 3)
    assert prefix is not None
    assert path(prefix) == table
