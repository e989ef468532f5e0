"""Who makes room: the choice alone, over a pool that says what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.ids import RequestId, Room, Slot
from tandem.core.pages import PagePool
from tandem.core.victims import Marks, choose

SIZE = 4


@dataclass(frozen=True)
class Request:
    order: int
    slot: Slot

    @property
    def room(self) -> Room:
        return Room(RequestId(self.order), 1)


class Bench:
    """Requests 1, 2, ... in the order of admission, each with a slot and so many pages; all of them run."""

    def __init__(self, *slots_and_pages: tuple[int, int], spare: int = 0) -> None:
        self.pool = PagePool(sum(pages for _, pages in slots_and_pages) + spare, SIZE)
        self.requests = [Request(order, Slot(slot)) for order, (slot, _) in enumerate(slots_and_pages, start=1)]
        for request, (_, pages) in zip(self.requests, slots_and_pages, strict=True):
            self.pool.allocate(request.room, pages)

    def victims(self, *blocked: int, giving: Sequence[int] = (), spared: Sequence[int] = ()) -> list[int]:
        requests = [self.requests[order - 1] for order in blocked]
        rooms = [self.requests[order - 1].room for order in giving]
        running = [one for one in reversed(self.requests) if one.room not in rooms]
        chosen = choose(requests, running, rooms, frozenset(map(Slot, spared)), self.pool)
        return [victim.order for victim in chosen]


def test_the_latest_makes_room_whichever_slot_it_is_in():
    assert Bench((0, 2), (1, 2), (0, 2)).victims(1) == [3]


def test_nobody_makes_room_for_a_later_one():
    bench = Bench((0, 2), (1, 2), (2, 2))
    assert bench.victims(3) == []
    assert bench.victims(2) == [3]


def test_pages_that_are_there_need_no_victim():
    assert Bench((0, 2), (1, 2), spare=1).victims(1) == []


def test_a_victim_makes_room_for_as_many_as_it_has_pages():
    bench = Bench((0, 2), (1, 2), (2, 2), (3, 2), (4, 2))
    assert bench.victims(1, 2) == [5]
    assert bench.victims(1, 2, 3) == [5, 4]


def test_a_victim_that_is_blocked_needs_no_page_itself():
    assert Bench((0, 1), (1, 1), (2, 1)).victims(1, 3) == [3]


def test_pages_on_their_way_back_are_counted_so_that_one_lack_is_not_answered_twice():
    bench = Bench((0, 2), (1, 2), (2, 2))
    assert bench.victims(1, giving=[3]) == []
    assert Bench((0, 2), (1, 2), (2, 0)).victims(1, giving=[3]) == [2]


def test_a_slot_gives_one_victim_at_a_time():
    bench = Bench((0, 1), (0, 1), (0, 1), (1, 1), (1, 1))
    assert bench.victims(1, 2) == [5, 3]
    assert bench.victims(1, 2, spared=[1]) == [3]


def test_a_shared_page_comes_back_with_its_last_user():
    """Two requests on one prefix of one page: the later one alone gives nothing back, so both have to make room."""
    pool = PagePool(3, SIZE)
    one, two, three = (Request(order, Slot(order)) for order in (1, 2, 3))
    prefix = bytes(4 * SIZE)
    pool.publish(two.room, "", prefix, pool.allocate(two.room, 1))
    assert pool.reuse(three.room, "", prefix, 1) == (0,)
    pool.allocate(one.room, 2)
    assert choose([one], [three, two, one], [], frozenset(), pool) == [three, two]
    assert choose([one], [two, one], [three.room], frozenset(), pool) == [two]


# those that still fly


@dataclass
class Flyer:
    flying: bool
    chosen: bool = False


def test_who_flies_runs_no_more_and_makes_room_when_it_is_back():
    marks: Marks[Flyer] = Marks()
    ready, flyer = Flyer(flying=False), Flyer(flying=True)
    assert marks.renew([ready, flyer]) == [ready]
    assert (ready.chosen, flyer.chosen) == (False, True)
    flyer.flying = False
    assert marks.renew([flyer]) == [flyer]
    assert not flyer.chosen


def test_who_is_not_needed_any_more_is_let_off():
    marks: Marks[Flyer] = Marks()
    flyer = Flyer(flying=True)
    marks.renew([flyer])
    assert marks.renew([]) == []
    assert not flyer.chosen
