"""Slots: where newcomers go, which slot is named next, and who may take a page."""

from decode.intake import Intake, State
from tandem.core.batching import Batches
from tandem.core.budget import Budget
from tandem.core.ids import NO_SLOT, RequestId, Room, Slot
from tandem.core.pages import PagePool
from tandem.core.queue import Place
from tandem.core.requests import Sampling, Work

SIZE = 4


class Bench:
    """Batches over a pool, with requests that are admitted in the order of `admit`."""

    def __init__(self, slots: int, pages: int, slot_rows: int = 1) -> None:
        self.pool = PagePool(pages, SIZE)
        self.budget = Budget()
        self.batches: Batches[Intake] = Batches(slots, self.pool, self.budget, slot_rows)
        self.admitted: list[Intake] = []

    def admit(self, number: int, prompt: int = SIZE - 1, max_tokens: int = 20, joins: bool = True) -> Intake:
        work = Work(Room(RequestId(number), 1), tuple(range(prompt)), max_tokens, (), Sampling(), "p0")
        request = Intake(work, Place(0, number), State.RUNNING)
        request.pages = self.pool.allocate(request.room, -(-prompt // SIZE))
        request.order = self.budget.admit(request.room, request.growth_left(SIZE))
        request.add(7)
        if joins:
            self.batches.join(request)
        self.admitted.append(request)
        return request

    def plan(self, slot: int) -> list[int]:
        """Request numbers of the rows."""
        return [int(row.room.rid) for row in self.batches.plan(Slot(slot))]

    def returned(self, *requests: Intake) -> None:
        for request in requests:
            request.flying = False
            request.add(8)

    def gone(self, request: Intake) -> None:
        self.batches.leave(request)
        self.budget.leave(request.room)
        self.pool.release(request.room)


def test_newcomers_go_where_the_fewest_run():
    bench = Bench(slots=3, pages=64)
    requests = [bench.admit(number) for number in range(5)]
    bench.plan(1)
    assert [request.slot for request in requests] == [1, 0, 2, 1, 0]


def test_few_requests_share_a_slot_and_the_next_one_is_begun_when_it_is_full():
    bench = Bench(slots=3, pages=64, slot_rows=2)
    requests = [bench.admit(number) for number in range(8)]
    bench.plan(1)
    assert [request.slot for request in requests] == [1, 1, 0, 0, 2, 2, 1, 0]


def test_a_newcomer_joins_the_slot_that_lacks_the_least():
    bench = Bench(slots=2, pages=64, slot_rows=3)
    requests = [bench.admit(number) for number in range(5)]
    assert bench.plan(0) == [0, 1, 2]
    assert bench.plan(1) == [3, 4]
    bench.gone(requests[0])
    bench.gone(requests[1])
    newcomer = bench.admit(5)
    bench.plan(NO_SLOT)
    assert newcomer.slot == 1


def test_slots_that_fit_into_one_are_joined_once_others_have_left():
    bench = Bench(slots=3, pages=64, slot_rows=3)
    requests = [bench.admit(number) for number in range(6)]
    assert bench.plan(0) == [0, 1, 2]
    assert bench.plan(1) == [3, 4, 5]
    bench.returned(*requests[:3])
    bench.gone(requests[0])
    assert bench.plan(0) == [1, 2], "they do not fit"
    bench.returned(*requests[1:])
    bench.gone(requests[4])
    bench.gone(requests[5])
    assert bench.plan(0) == [], "they wait for the other slot, whose weights are read anyway"
    assert bench.batches.next_slot(Slot(0), set()) == (1, True)
    assert bench.plan(1) == [1, 2, 3], "in the order of admission"
    assert [request.slot for request in requests[1:4]] == [1, 1, 1]


def test_a_slot_is_not_joined_to_an_empty_one():
    bench = Bench(slots=2, pages=64, slot_rows=4)
    request = bench.admit(1)
    for _ in range(3):
        assert bench.plan(1) == [1]
        bench.returned(request)


def test_who_waits_for_pages_goes_over_with_its_slot():
    bench = Bench(slots=2, pages=3, slot_rows=2)
    first, second, third = (bench.admit(number, prompt=SIZE, max_tokens=5) for number in (1, 2, 3))
    assert bench.plan(0) == []
    assert bench.plan(1) == []
    bench.batches.leave(first)
    assert bench.plan(0) == []
    assert second.slot == third.slot == 1
    assert bench.batches.blocked() == [second, third]
    bench.gone(first)
    assert bench.plan(1) == [2]


def test_among_equals_the_slot_that_runs_now_gets_the_newcomer():
    bench = Bench(slots=3, pages=64)
    bench.admit(1)
    assert bench.plan(2) == [1]


def test_a_frame_that_names_no_slot_runs_nothing_but_binds():
    bench = Bench(slots=2, pages=64)
    request = bench.admit(1)
    assert bench.plan(NO_SLOT) == []
    assert request.slot == 0
    assert bench.plan(0) == [1]


def test_a_request_stays_in_its_slot():
    bench = Bench(slots=2, pages=64)
    request = bench.admit(1)
    bench.plan(1)
    bench.returned(request)
    assert bench.plan(0) == []
    assert bench.plan(1) == [1]


def test_rows_are_in_the_order_of_admission_whoever_joined_first():
    bench = Bench(slots=1, pages=64)
    first = bench.admit(1, joins=False)
    second = bench.admit(2)
    assert bench.plan(0) == [2]
    bench.returned(second)
    bench.batches.join(first)
    assert bench.plan(0) == [1, 2]


def test_rows_feed_the_newest_token_at_its_position():
    bench = Bench(slots=1, pages=64)
    request = bench.admit(1, prompt=5)
    (row,) = bench.batches.plan(Slot(0))
    assert (row.tokens, row.start, row.samples, row.pages) == ((7,), 5, True, (0, 1))
    assert request.flying


def test_a_page_is_taken_only_when_the_next_token_needs_it():
    bench = Bench(slots=1, pages=64)
    request = bench.admit(1, prompt=SIZE - 1)
    bench.plan(0)
    assert len(request.pages) == 1
    bench.returned(request)
    bench.plan(0)
    assert len(request.pages) == 2


def test_a_page_that_is_taken_is_one_less_to_ask_for():
    bench = Bench(slots=1, pages=3)
    bench.admit(1, prompt=SIZE, max_tokens=5)
    assert not bench.budget.admits(1, held=1, left=0)
    bench.plan(0)
    assert bench.budget.admits(1, held=1, left=0)


def test_a_request_that_cannot_grow_skips_the_tick_and_tries_again_when_pages_come_back():
    bench = Bench(slots=1, pages=3)
    first = bench.admit(1, prompt=SIZE, max_tokens=5)
    second = bench.admit(2, prompt=SIZE, max_tokens=5)
    assert bench.plan(0) == [1]
    assert bench.batches.blocked() == [second]
    bench.returned(first)
    assert bench.batches.next_slot(Slot(0), set()) == (0, True)
    bench.batches.leave(first)
    assert bench.batches.next_slot(Slot(0), set()) == (0, False), "else the ring would spin"
    assert bench.plan(0) == []
    bench.gone(first)
    assert bench.batches.next_slot(Slot(0), set()) == (0, True)
    assert bench.plan(0) == [2]
    assert bench.batches.blocked() == []


def test_the_blocked_are_told_oldest_first_and_until_they_leave():
    bench = Bench(slots=2, pages=3)
    first, second, third = (bench.admit(number, prompt=SIZE, max_tokens=5) for number in (1, 2, 3))
    assert bench.plan(1) == []
    assert bench.plan(0) == []
    assert (first.slot, second.slot, third.slot) == (1, 0, 1)
    assert bench.batches.blocked() == [first, second, third]
    bench.gone(second)
    assert bench.batches.blocked() == [first, third]


def test_the_next_slot_is_the_next_one_that_can_run():
    bench = Bench(slots=4, pages=64)
    bench.admit(1)
    bench.plan(1)
    bench.admit(2)
    bench.plan(3)
    for request in bench.admitted:
        bench.returned(request)
    assert bench.batches.next_slot(Slot(0), set()) == (1, True)
    assert bench.batches.next_slot(Slot(1), set()) == (3, True)
    assert bench.batches.next_slot(Slot(3), set()) == (1, True)


def test_a_busy_slot_is_never_named():
    bench = Bench(slots=2, pages=64)
    bench.admit(1)
    bench.plan(1)
    assert bench.batches.next_slot(Slot(0), {Slot(1)}) == (0, False)
    assert bench.batches.next_slot(Slot(0), {Slot(0), Slot(1)}) == (NO_SLOT, False)


def test_an_ended_request_does_not_run_and_leaves_nothing():
    bench = Bench(slots=1, pages=64)
    request = bench.admit(1)
    bench.plan(0)
    request.state = State.FINISHING
    assert bench.batches.next_slot(Slot(0), set()) == (0, False)
    assert bench.plan(0) == []
    bench.batches.leave(request)
    assert len(bench.batches) == 0


def test_one_that_is_chosen_to_make_room_runs_no_more():
    bench = Bench(slots=1, pages=64)
    bench.admit(1).chosen = True
    assert bench.plan(0) == []
    assert bench.batches.next_slot(Slot(0), set()) == (0, False)


def test_one_that_leaves_before_it_got_a_slot_leaves_nothing():
    bench = Bench(slots=1, pages=64)
    bench.batches.leave(bench.admit(1))
    assert bench.plan(0) == []
