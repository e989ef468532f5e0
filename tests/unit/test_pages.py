"""The page allocator with its prefix cache: its rules one by one, and against a naive model."""

import random
from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from tandem.core.errors import IllegalTransition
from tandem.core.ids import PageId, RequestId, Room
from tandem.core.pages import PagePool

A, B, C = (Room(RequestId(number), 1) for number in (1, 2, 3))


def tokens(text: str) -> bytes:
    """One letter is one token."""
    return text.encode("utf-32-le")


def compute(pool: PagePool, room: Room, text: str, salt: str = "") -> tuple[PageId, ...]:
    """What a role does with a prompt: reuse what is known, allocate the rest, publish the whole. Returns its pages."""
    pages = pool.reuse(room, salt, tokens(text), len(text) // pool.page_size)
    pages += pool.allocate(room, len(text) // pool.page_size - len(pages))
    pool.publish(room, salt, tokens(text), pages)
    return pages


def cached(pool: PagePool, text: str, salt: str = "") -> tuple[PageId, ...]:
    """The pages that a newcomer would share."""
    newcomer = Room(RequestId(0), 1)
    pages = pool.reuse(newcomer, salt, tokens(text), len(text))
    pool.release(newcomer)
    return pages


def test_pages_are_given_as_runs_of_neighbours():
    pool = PagePool(10, 16)
    assert pool.allocate(A, 3) == (0, 1, 2)
    assert pool.allocate(B, 2) == (3, 4)


def test_a_hole_that_fits_is_used_before_the_large_run():
    pool = PagePool(10, 16)
    pool.allocate(A, 2)
    pool.allocate(B, 2)
    pool.release(A)
    assert pool.allocate(C, 2) == (0, 1)


def test_a_request_that_fits_no_hole_takes_the_longest_run_first():
    pool = PagePool(8, 16)
    pool.allocate(A, 1)
    pool.allocate(B, 2)
    pool.allocate(C, 1)
    pool.release(A)
    assert pool.allocate(A, 5) == (4, 5, 6, 7, 0)


def test_more_pages_of_one_room_add_up():
    pool = PagePool(4, 16)
    pool.allocate(A, 1)
    pool.allocate(A, 2)
    assert pool.held(A) == (0, 1, 2)


def test_quarantined_pages_are_given_to_nobody():
    pool = PagePool(4, 16)
    pool.allocate(A, 3)
    pool.quarantine(A)
    assert pool.counts() == {"free": 1, "owned": 0, "cached": 0, "quarantined": 3}
    assert pool.allocate(B, 1) == (3,)
    with pytest.raises(IllegalTransition, match="0 are available"):
        pool.allocate(C, 1)


def test_a_room_in_quarantine_gets_no_pages():
    pool = PagePool(4, 16)
    pool.allocate(A, 1)
    pool.quarantine(A)
    with pytest.raises(IllegalTransition):
        pool.allocate(A, 1)


def test_release_gives_back_what_is_owned_and_what_is_quarantined():
    pool = PagePool(4, 16)
    for room in (A, B):
        pool.allocate(room, 2)
    pool.quarantine(A)
    pool.release(A)
    pool.release(B)
    pool.audit()
    assert pool.free == 4
    assert pool.allocate(C, 4) == (0, 1, 2, 3)


def test_releasing_twice_frees_nothing_twice():
    pool = PagePool(2, 16)
    pool.allocate(A, 1)
    pool.release(A)
    pool.release(A)
    pool.audit()
    assert pool.free == 2


def test_every_release_is_news_to_those_who_wait():
    pool = PagePool(2, 16)
    pool.allocate(A, 1)
    before = pool.freed_at
    pool.release(A)
    assert pool.freed_at > before


def test_pages_given_are_drained_once_and_in_order():
    pool = PagePool(4, 16)
    pool.allocate(A, 2)
    pool.allocate(B, 1)
    assert pool.drain_given() == [0, 1, 2]
    assert pool.drain_given() == []


def test_lost_pages_are_noticed():
    pool = PagePool(4, 16)
    pool.allocate(A, 1)
    pool.free -= 1
    with pytest.raises(IllegalTransition, match="not conserved"):
        pool.check()


def test_a_doubled_page_is_noticed():
    pool = PagePool(4, 16)
    pool.allocate(A, 1)
    pool._holdings[A].private = {PageId(3): None}
    pool.check()
    with pytest.raises(IllegalTransition, match="lost or doubled"):
        pool.audit()


# shared pages


def test_what_one_room_has_published_another_reuses():
    pool = PagePool(8, 2)
    assert compute(pool, A, "aabbcc") == (0, 1, 2)
    assert pool.reuse(B, "", tokens("aabbxx"), 9) == (0, 1)
    assert pool.held(B) == (0, 1)
    pool.audit()


def test_published_pages_are_cached_and_outlive_their_room():
    pool = PagePool(8, 2)
    compute(pool, A, "aabbcc")
    assert pool.counts() == {"free": 5, "owned": 0, "cached": 3, "quarantined": 0}
    assert pool.available == 5
    pool.release(A)
    assert pool.counts() == {"free": 5, "owned": 0, "cached": 3, "quarantined": 0}
    assert pool.available == 8


def test_no_more_is_reused_than_asked_for():
    pool = PagePool(8, 2)
    compute(pool, A, "aabbcc")
    assert pool.reuse(B, "", tokens("aabbcc"), 2) == (0, 1)


def test_a_share_that_leaves_too_much_is_given_back():
    pool = PagePool(4, 1)
    pages = compute(pool, A, "abc")
    pool.release(A)
    found: list[int] = []
    assert pool.share(B, "", tokens("abcd"), 3, lambda hit: bool(found.append(hit))) is None
    assert (found, pool.held(B), pool.available) == ([3], (), 4)
    assert pool.share(B, "", tokens("abcd"), 3, lambda hit: hit == 3) == pages == pool.held(B)


def test_what_may_help_one_who_was_refused_is_news():
    pool = PagePool(4, 1)
    before = pool.news
    pages = pool.allocate(A, 2)
    assert pool.news == before
    pool.publish(A, "", tokens("ab"), pages)
    assert (published := pool.news) != before
    pool.release(A)
    assert pool.news != published


def test_rooms_of_different_salts_share_nothing():
    pool = PagePool(8, 2)
    compute(pool, A, "aabb", salt="one")
    assert pool.reuse(B, "two", tokens("aabb"), 9) == ()


def test_only_published_tokens_are_shared():
    pool = PagePool(8, 2)
    pages = pool.allocate(A, 3)
    pool.publish(A, "", tokens("aa"), pages)
    pool.release(A)
    assert cached(pool, "aabbcc") == (0,)
    assert pool.counts()["free"] == 7


def test_a_room_may_publish_more_as_it_goes_on():
    pool = PagePool(8, 2)
    pages = compute(pool, A, "aabb")
    pages += pool.allocate(A, 1)
    pool.publish(A, "", tokens("aabbcc"), pages)
    pool.release(A)
    assert cached(pool, "aabbcc") == (0, 1, 2)


def test_of_two_copies_the_first_is_shared_and_the_second_stays_private():
    pool = PagePool(8, 2)
    first, second = pool.allocate(A, 2), pool.allocate(B, 2)
    pool.publish(A, "", tokens("aabb"), first)
    pool.publish(B, "", tokens("aabb"), second)
    assert pool.held(B) == second, "two copies at once could keep it from growing to its end"
    pool.release(A)
    assert pool.available == 6
    pool.release(B)
    assert pool.counts() == {"free": 6, "owned": 0, "cached": 2, "quarantined": 0}
    assert cached(pool, "aabb") == first


def test_behind_a_copy_the_own_pages_are_shared_when_the_room_leaves():
    pool = PagePool(8, 2)
    compute(pool, A, "aa")
    own = pool.allocate(B, 2)
    pool.publish(B, "", tokens("aabb"), own)
    assert cached(pool, "aabb") == (0,)
    pool.publish(B, "", tokens("aabb"), own, leaving=True)
    pool.release(B)
    assert cached(pool, "aabb") == (0, own[1])
    assert pool.counts()["owned"] == 0


def test_too_few_free_pages_are_made_up_for_by_the_least_recently_used_prefix():
    pool = PagePool(6, 2)
    for room, text in ((A, "aabb"), (B, "ccdd")):
        compute(pool, room, text)
    pool.release(B)
    pool.release(A)
    pool.allocate(C, 4)
    assert cached(pool, "aabb") == (0, 1)
    assert cached(pool, "ccdd") == ()
    pool.audit()


def test_used_prefixes_are_not_evicted():
    pool = PagePool(4, 2)
    compute(pool, A, "aabb")
    pool.allocate(B, 2)
    with pytest.raises(IllegalTransition, match="0 are available"):
        pool.allocate(B, 1)
    assert cached(pool, "aabb") == (0, 1)


def test_quarantine_keeps_the_shared_pages_in_use_until_release():
    pool = PagePool(4, 2)
    compute(pool, A, "aabb")
    pool.allocate(A, 1)
    pool.quarantine(A)
    assert pool.available == 1
    assert pool.counts() == {"free": 1, "owned": 0, "cached": 2, "quarantined": 1}
    assert pool.held(A) == (0, 1, 2)
    pool.release(A)
    assert pool.available == 4


def test_without_a_prefix_cache_nothing_is_published_or_reused():
    pool = PagePool(8, 2, prefix_cache=False)
    compute(pool, A, "aabb")
    assert pool.counts()["cached"] == 0
    assert pool.reuse(B, "", tokens("aabb"), 9) == ()


def test_a_shared_prefix_is_digested_by_its_last_page():
    pool = PagePool(8, 2)
    compute(pool, A, "aabbcc")
    pool.drain_given()
    pool.reuse(B, "", tokens("aabbcc"), 2)
    assert pool.drain_given() == [1]


def test_a_room_that_holds_pages_reuses_nothing():
    pool = PagePool(8, 2)
    pool.allocate(A, 1)
    with pytest.raises(IllegalTransition, match="comes first"):
        pool.reuse(A, "", tokens("aa"), 1)


def test_pages_of_others_cannot_be_published():
    pool = PagePool(8, 2)
    pool.allocate(A, 1)
    with pytest.raises(IllegalTransition, match="not the room's own"):
        pool.publish(A, "", tokens("aa"), pool.allocate(B, 1))


@pytest.mark.parametrize("text", ["aab", "aabbcc"])
def test_tokens_must_fill_the_pages_they_are_published_in(text: str):
    pool = PagePool(8, 2)
    pages = pool.allocate(A, 2)
    with pytest.raises(IllegalTransition, match="cannot publish"):
        pool.publish(A, "", tokens(text), pages)


def test_a_room_in_quarantine_publishes_nothing():
    pool = PagePool(8, 2)
    pages = pool.allocate(A, 1)
    pool.quarantine(A)
    with pytest.raises(IllegalTransition, match="cannot publish"):
        pool.publish(A, "", tokens("aa"), pages)


# a flush


def test_a_flush_frees_what_nobody_uses_and_hides_the_rest():
    pool = PagePool(8, 2)
    compute(pool, A, "aabb")
    compute(pool, B, "ccdd")
    pool.release(B)
    pool.flush()
    assert pool.counts() == {"free": 6, "owned": 0, "cached": 2, "quarantined": 0}
    assert cached(pool, "aabb") == cached(pool, "ccdd") == ()
    pool.release(A)
    pool.audit()
    assert pool.free == 8


def test_what_was_computed_before_a_flush_is_not_published_after_it():
    pool = PagePool(8, 2)
    pages = pool.allocate(A, 2)
    pool.flush()
    pool.publish(A, "", tokens("aabb"), pages)
    assert cached(pool, "aabb") == ()
    pool.release(A)
    assert compute(pool, A, "aabb") == cached(pool, "aabb") == (0, 1)


def test_a_flush_is_news_to_those_who_wait():
    pool = PagePool(2, 16)
    before = pool.freed_at
    pool.flush()
    assert pool.freed_at > before


# who gives back what


def test_the_last_room_in_line_returns_what_several_share():
    pool = PagePool(8, 2)
    compute(pool, A, "aabbcc")
    compute(pool, B, "aabbdd")
    assert pool.returned_by([A, B]) == [1, 3]
    assert pool.returned_by([B, A]) == [1, 3]
    assert pool.returned_by([A]) == [1]


def test_private_and_quarantined_pages_are_returned_by_their_room():
    pool = PagePool(8, 2)
    pool.allocate(A, 2)
    pool.allocate(B, 3)
    pool.quarantine(B)
    assert pool.returned_by([C, A, B]) == [0, 2, 3]


# against a naive model


Prefix = tuple[str, bytes]


@dataclass
class Tenant:
    """A room as the model sees it: its whole text, and the pages that it shares."""

    salt: str
    text: bytes
    table: tuple[PageId, ...] = ()
    private: set[PageId] = field(default_factory=set)
    shared: set[PageId] = field(default_factory=set)
    quarantined: bool = False
    stale: bool = False  # since before a flush


class NaivePool:
    """Sets of page numbers and a dict from prefix to page; where `PagePool` prefers a run, any choice is right."""

    def __init__(self, num_pages: int, page_bytes: int) -> None:
        self.free = {PageId(page) for page in range(num_pages)}
        self.index: dict[Prefix, PageId] = {}
        self.flushed: set[PageId] = set()
        self.last_use: dict[PageId, int] = {}
        self.tenants: dict[Room, Tenant] = {}
        self._page_bytes = page_bytes
        self._uses = 0

    def prefixes(self, salt: str, text: bytes) -> list[Prefix]:
        ends = range(self._page_bytes, len(text) + 1, self._page_bytes)
        return [(salt, text[:end]) for end in ends]

    def longest(self, salt: str, text: bytes, most: int) -> tuple[PageId, ...]:
        pages = []
        for prefix in self.prefixes(salt, text)[:most]:
            if prefix not in self.index:
                break
            pages.append(self.index[prefix])
        return tuple(pages)

    def used(self) -> set[PageId]:
        return {page for tenant in self.tenants.values() for page in tenant.shared}

    def unused(self) -> dict[Prefix, PageId]:
        used = self.used()
        return {prefix: page for prefix, page in self.index.items() if page not in used}

    @property
    def available(self) -> int:
        return len(self.free) + len(self.unused())

    def evict_one(self) -> None:
        """The least recently used page of those that are no beginning of a longer prefix."""
        whole = [(salt, text[: -self._page_bytes]) for salt, text in self.index]
        ends = {prefix: page for prefix, page in self.unused().items() if prefix not in whole}
        oldest = min(ends, key=lambda prefix: self.last_use[ends[prefix]])
        self.free.add(self.index.pop(oldest))

    def allocate(self, room: Room, pages: tuple[PageId, ...]) -> None:
        while len(self.free) < len(pages):
            self.evict_one()
        assert len(set(pages)) == len(pages)
        assert set(pages) <= self.free
        self.free -= set(pages)
        self.tenants[room].private |= set(pages)
        self.tenants[room].table += pages

    def reuse(self, room: Room, pages: tuple[PageId, ...]) -> None:
        self.tenants[room].shared |= set(pages)
        self.tenants[room].table += pages

    def publish(self, room: Room, text: bytes, leaving: bool) -> None:
        tenant = self.tenants[room]
        if tenant.stale:
            return
        for prefix, page in zip(self.prefixes(tenant.salt, text), tenant.table, strict=False):
            if not leaving and self.index.get(prefix, page) not in (page, *tenant.shared):
                return
            if prefix not in self.index:
                tenant.private.remove(page)
                self.index[prefix] = page
            tenant.shared.add(self.index[prefix])

    def release(self, room: Room) -> None:
        tenant = self.tenants.pop(room)
        self._uses += 1
        self.free |= tenant.private
        left = tenant.shared - self.used()
        self.last_use |= dict.fromkeys(left, self._uses)
        self.free |= left & self.flushed
        self.flushed -= left

    def flush(self) -> None:
        self.free |= set(self.unused().values())
        self.flushed |= set(self.index.values()) - self.free
        self.index.clear()
        for tenant in self.tenants.values():
            tenant.stale = tenant.stale or bool(tenant.table)

    def counts(self) -> dict[str, int]:
        """Pages by state, as the pool counts them."""
        owned = sum(len(tenant.private) for tenant in self.tenants.values() if not tenant.quarantined)
        quarantined = sum(len(tenant.private) for tenant in self.tenants.values() if tenant.quarantined)
        cached = len(self.index) + len(self.flushed)
        return {"free": len(self.free), "owned": owned, "cached": cached, "quarantined": quarantined}

    def returned_by(self, rooms: list[Room]) -> list[int]:
        """By trying: a copy is released room by room."""
        trial = deepcopy(self)
        returned = []
        for room in rooms:
            before = trial.available
            trial.release(room)
            returned.append(trial.available - before)
        return returned


PAGE_SIZE = 2
SALTS = ("", "tenant")


class Bench:
    """A pool and its model, which are told the same by a random caller and must say the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        size = self.random.choice((0, 3, 12, 40))
        self.pool = PagePool(size, PAGE_SIZE)
        self.naive = NaivePool(size, PAGE_SIZE * 4)
        self.rooms = 0

    def arrive(self) -> None:
        """A new room shares what is known of its text."""
        room, self.rooms = Room(RequestId(self.rooms), 1), self.rooms + 1
        text = tokens("".join(self.random.choices("ab", weights=(5, 1), k=self.random.randrange(16))))
        tenant = self.naive.tenants[room] = Tenant(self.random.choice(SALTS), text)
        most = self.random.randrange(10)
        pages = self.pool.reuse(room, tenant.salt, text, most)
        assert pages == self.naive.longest(tenant.salt, text, most)
        self.naive.reuse(room, pages)

    def allocate(self) -> None:
        room, tenant = self._some_room()
        count = self.random.randint(1, 7)
        if count > self.naive.available or tenant.quarantined:
            with pytest.raises(IllegalTransition):
                self.pool.allocate(room, count)
        else:
            self.naive.allocate(room, self.pool.allocate(room, count))

    def publish(self) -> None:
        """As much of the text as there are pages for; the text goes on like one that is generated."""
        room, tenant = self._some_room()
        if tenant.quarantined or not tenant.table:
            return
        tenant.text += tokens("".join(self.random.choices("ab", k=self.random.randrange(6))))
        pages = min(len(tenant.table), len(tenant.text) // (PAGE_SIZE * 4))
        text = tenant.text[: self.random.randint(0, pages) * PAGE_SIZE * 4]
        leaving = self.random.random() < 0.3
        self.pool.publish(room, tenant.salt, text, tenant.table, leaving=leaving)
        self.naive.publish(room, text, leaving)

    def quarantine(self) -> None:
        room, tenant = self._some_room()
        self.pool.quarantine(room)
        tenant.quarantined = True

    def release(self) -> None:
        room, _ = self._some_room()
        before = self.pool.freed_at
        self.pool.release(room)
        self.naive.release(room)
        assert self.pool.freed_at > before

    def flush(self) -> None:
        self.pool.flush()
        self.naive.flush()

    def _some_room(self) -> tuple[Room, Tenant]:
        return self.random.choice(list(self.naive.tenants.items()))

    def step(self) -> None:
        """One operation; there are a few rooms at any time."""
        if not self.naive.tenants:
            return self.arrive()
        operations = (self.arrive, self.allocate, self.publish, self.quarantine, self.release, self.flush)
        weights = (12, 20, 20, 1, 3 * len(self.naive.tenants), 0.5)
        return self.random.choices(operations, weights)[0]()

    def compare(self) -> None:
        """Pool and model are in the same state."""
        self.pool.audit()
        assert self.pool.counts() == self.naive.counts()
        assert self.pool.available == self.naive.available
        for room, tenant in self.naive.tenants.items():
            held = self.pool.held(room)
            assert len(held) == len(tenant.private) + len(tenant.shared)
            assert set(held) == tenant.private | tenant.shared
        rooms = self.random.sample(list(self.naive.tenants), self.random.randint(0, len(self.naive.tenants)))
        assert self.pool.returned_by(rooms) == self.naive.returned_by(rooms)


@pytest.mark.parametrize("seed", range(20))
def test_any_operations_agree_with_the_naive_model(seed: int):
    bench = Bench(seed)
    for _ in range(500):
        bench.step()
        bench.compare()


def test_the_same_operations_give_the_same_pages():
    given = []
    for _ in range(2):
        bench = Bench(seed=1)
        for _ in range(500):
            bench.step()
        given.append(bench.pool.drain_given())
    assert given[0] == given[1]
