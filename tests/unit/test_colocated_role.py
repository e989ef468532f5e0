"""A colocated group: prompts and answers share the ticks of one ring, and who makes room is computed anew."""

from itertools import product

import pytest
from msgspec.structs import replace

from colocated.request import NEXT, Input, Request, State
from tandem.assembly import build_courier, build_scheduler
from tandem.core.config import Group, Limits, RoleName
from tandem.core.errors import IllegalTransition
from tandem.core.ids import LEADER, NO_SLOT, PageId, RequestId, Room, Slot, Tick
from tandem.core.inputs import Abort, Arrival, Control, FirstToken, Frame, Harvest, Kind, Knobs, Order, Submit, Verdict
from tandem.core.plan import Ask, Emitted, Ended, Forgotten, Plan, Question, Row, Uncompiled
from tandem.core.queue import Place, Queue
from tandem.core.requests import Reason, Sampling, Work

LIMITS = Limits(page_size=4, num_pages=16, context=64, chunked_prefill_size=8, max_prefill_tokens=12, slot_rows=1)


def room(number: int) -> Room:
    return Room(RequestId(number), 1)


def submit(number: int, prompt: int = 4, max_tokens: int = 8, remaining_ms: int = 60_000, **more) -> Submit:
    """Prompts of different numbers share nothing."""
    tokens = tuple(100 * number + index for index in range(prompt))
    return Submit(Work(room(number), tokens, max_tokens, (0,), Sampling(), None, **more), remaining_ms)


def like(number: int, prompt: tuple[int, ...], max_tokens: int = 8, salt: str = "") -> Submit:
    return Submit(Work(room(number), prompt, max_tokens, (), Sampling(), None, salt=salt), 60_000)


def abort(number: int) -> Abort:
    return Abort(room(number), Reason.CLIENT_GONE)


class Bench:
    """A scheduler with a colocated role, fed frames by hand: every tick that has rows flies until it is landed."""

    def __init__(self, limits: Limits = LIMITS, pp: int = 2) -> None:
        self.scheduler = build_scheduler(Group(RoleName.COLOCATED, "c0", (1,) * pp), limits)
        self.role = self.scheduler.role
        self.flying: list[Plan] = []
        self.now_ms = 0
        self._token = 1

    def tick(self, *arrivals: Arrival, slot: int | None = None, land: int = 0) -> Plan:
        """One frame that brings the oldest `land` ticks back. Without a slot, the role says which is next."""
        harvests = tuple(self._harvest(self.flying.pop(0)) for _ in range(land))
        if slot is None:
            landed = frozenset(harvest.tick for harvest in harvests)
            slot = self.role.next_slot(Slot(0), self.scheduler.flights, landed)[0]
        tick = Tick(self.scheduler.tick + 1)
        plan = self.scheduler.step(Frame(tick, Slot(slot), self.now_ms, arrivals, (), harvests))
        self.role.pool.audit()
        if plan.rows:
            self.flying.append(plan)
        return plan

    def _harvest(self, plan: Plan) -> Harvest:
        rooms = [row.room for row in plan.rows if row.samples]
        self._token += len(rooms)
        return Harvest(plan.tick, tuple((one, (self._token,)) for one in rooms))

    def run(self, *arrivals: Arrival) -> list:
        """One tick at a time, until nothing is left to do; all notes."""
        notes = list(self.tick(*arrivals, slot=0).notes)
        while self.flying or self.can_run():
            notes += self.tick(land=min(1, len(self.flying))).notes
        return notes

    def can_run(self) -> bool:
        return self.role.next_slot(Slot(0), self.scheduler.flights, frozenset())[1]

    def available(self) -> int:
        return self.role.pool.available


def told(plan: Plan, kind: type) -> list:
    return [note for note in plan.notes if isinstance(note, kind)]


def spans(plan: Plan) -> list[tuple[int, int, int, bool]]:
    """(request, first token, one past the last, samples) of each row."""
    return [(int(row.room.rid), row.start, row.end, row.samples) for row in plan.rows]


# prompts and answers in the same ticks


def test_chunks_of_one_prompt_follow_each_other_through_the_slots():
    bench = Bench()
    assert spans(bench.tick(submit(1, prompt=20), slot=0)) == [(1, 0, 8, False)]
    assert spans(bench.tick(slot=1)) == [(1, 8, 16, False)]
    assert bench.role.next_slot(Slot(1), bench.scheduler.flights, frozenset()) == (NO_SLOT, False)
    assert spans(bench.tick(land=1, slot=0)) == [(1, 16, 20, True)]


def test_the_first_token_is_told_and_lets_the_request_join_the_emptiest_slot():
    bench = Bench()
    bench.tick(submit(1), submit(2), slot=0)
    plan = bench.tick(land=1, slot=1)
    assert told(plan, Emitted) == [Emitted(room(1), 0, 3), Emitted(room(2), 0, 3)]
    assert spans(plan) == [(1, 4, 5, True)], "the slot that runs now is as empty as the other"
    assert spans(bench.tick(slot=0)) == [(2, 4, 5, True)]


def test_a_tick_has_next_tokens_of_its_slot_and_chunks_within_the_budget():
    bench = Bench(pp=1)
    bench.tick(submit(1), slot=0)
    plan = bench.tick(submit(2, prompt=20), submit(3, prompt=6), land=1)
    assert spans(plan) == [(1, 4, 5, True), (2, 0, 8, False), (3, 0, 4, False)]
    assert spans(bench.tick(land=1)) == [(1, 5, 6, True), (2, 8, 16, False), (3, 4, 6, True)]
    assert spans(bench.tick(land=1)) == [(1, 6, 7, True), (3, 6, 7, True), (2, 16, 20, True)]


def test_knobs_change_the_chunks():
    bench = Bench(pp=1)
    bench.tick(Knobs(max_prefill_tokens=3))
    assert spans(bench.tick(submit(1, prompt=8), submit(2), slot=0)) == [(1, 0, 3, False)]
    bench.tick(Knobs(max_prefill_tokens=100, chunked_prefill_size=4), land=1)
    assert spans(bench.flying[-1]) == [(1, 3, 7, False), (2, 0, 4, True)]


def test_tokens_are_told_until_the_last_one_and_all_pages_are_back():
    bench = Bench()
    notes = bench.run(submit(1, max_tokens=3))
    assert [note.index for note in notes if isinstance(note, Emitted)] == [0, 1, 2]
    assert notes[-2:] == [Ended(room(1), Reason.LENGTH), Forgotten(room(1))]
    assert (bench.role.lengths(), bench.available()) == ((0, 0, 0), LIMITS.num_pages)


def test_one_token_ends_with_its_prompt():
    bench = Bench()
    notes = bench.run(submit(1, max_tokens=1))
    assert [type(note) for note in notes] == [Emitted, Ended, Forgotten]


def test_a_slot_that_can_run_something_is_named_next():
    bench = Bench()
    assert bench.role.next_slot(Slot(0), bench.scheduler.flights, frozenset()) == (1, False)
    bench.tick(submit(1, prompt=9), slot=0)
    assert bench.role.next_slot(Slot(0), bench.scheduler.flights, frozenset()) == (1, True), "a chunk is left"
    bench.tick(slot=1)
    assert not bench.can_run()


def test_a_paused_group_starts_nothing_and_goes_on_when_it_resumes():
    bench = Bench()
    assert bench.tick(Control(Order.PAUSE), submit(1), slot=0).rows == ()
    assert spans(bench.tick(Control(Order.RESUME), slot=0)) == [(1, 0, 4, True)]


# who gets pages


def test_the_most_important_goes_first_and_nobody_overtakes_it():
    bench = Bench(Limits(page_size=4, num_pages=4, context=64))
    bench.tick(submit(1, prompt=8, max_tokens=5), slot=0)
    bench.tick(submit(2, prompt=4), submit(3, prompt=12, max_tokens=2, priority=1), slot=NO_SLOT)
    assert bench.role.lengths() == (3, 2, 1)
    bench.tick(abort(1), land=1, slot=NO_SLOT)
    assert spans(bench.tick(slot=0)) == [(3, 0, 12, True)]


def test_the_oldest_can_grow_to_its_end_and_everyone_can_take_a_next_page():
    bench = Bench(Limits(page_size=4, num_pages=8, context=64))
    bench.tick(submit(1, prompt=4, max_tokens=13), slot=0)  # 1 page now, 3 more at most
    bench.tick(submit(2, prompt=12, max_tokens=8), slot=NO_SLOT)  # 3 of 7: leaves 4 for 3
    assert bench.role.lengths() == (2, 0, 2)
    bench.tick(submit(3, prompt=4, max_tokens=2), slot=NO_SLOT)  # would leave 3, as many as may ask for a page
    assert bench.role.lengths() == (3, 0, 3)
    bench.tick(submit(4, prompt=4, max_tokens=1), slot=NO_SLOT)  # never grows, but would leave 2
    assert bench.role.lengths() == (4, 1, 3)


def test_one_request_may_have_the_whole_pool():
    bench = Bench(Limits(page_size=4, num_pages=4, context=64))
    notes = bench.run(submit(1, prompt=15, max_tokens=2))
    assert Ended(room(1), Reason.LENGTH) in notes


def test_a_known_prefix_is_not_computed_again():
    bench = Bench(pp=1)
    bench.run(like(1, tuple(range(10)), max_tokens=1))
    assert spans(bench.tick(like(2, tuple(range(10))), slot=0)) == [(2, 8, 10, True)]
    assert bench.flying[-1].rows[0].pages[:2] == (0, 1)


def test_one_token_is_computed_even_if_all_are_known():
    bench = Bench(pp=1)
    bench.run(like(1, tuple(range(8)), max_tokens=1))
    assert spans(bench.tick(like(2, tuple(range(8))), slot=0)) == [(2, 4, 8, True)]


@pytest.mark.parametrize(("salt", "limits"), [("other", LIMITS), ("", Limits(page_size=4, prefix_cache=False))])
def test_nothing_is_shared_with_another_salt_or_without_a_cache(salt: str, limits: Limits):
    bench = Bench(limits, pp=1)
    bench.run(like(1, tuple(range(8)), max_tokens=1))
    assert spans(bench.tick(like(2, tuple(range(8)), salt=salt), slot=0)) == [(2, 0, 8, True)]


def test_a_flush_forgets_what_was_known():
    bench = Bench(pp=1)
    bench.run(submit(1, prompt=8, max_tokens=1))
    bench.tick(Control(Order.FLUSH), slot=NO_SLOT)
    assert bench.role.pool.free == LIMITS.num_pages


def test_two_that_compute_the_same_hold_no_page_twice():
    """Else the one that goes on could lack the pages to grow to its end: found by a random run."""
    bench = Bench(Limits(page_size=4, num_pages=8, context=64, chunked_prefill_size=64), pp=1)
    prompt = tuple(range(12))
    notes = bench.run(like(1, prompt, max_tokens=1), like(2, prompt, max_tokens=21))
    assert [note for note in notes if isinstance(note, Ended)] == [
        Ended(room(1), Reason.LENGTH),
        Ended(room(2), Reason.LENGTH),
    ]


def test_what_follows_a_prefix_that_another_computed_first_is_known_when_its_room_has_gone():
    bench = Bench(Limits(page_size=4, num_pages=32, context=64, chunked_prefill_size=64), pp=1)
    prompt = tuple(range(8))
    longer = (*prompt, *range(900, 908))
    bench.run(like(1, prompt, max_tokens=1), like(2, longer, max_tokens=1))
    assert spans(bench.tick(like(3, (*longer, 999)), slot=0)) == [(3, 16, 17, True)]


# who makes room

CROWDED = Limits(page_size=4, num_pages=4, context=64, slot_rows=1)
FIRST, SECOND = submit(1, prompt=4, max_tokens=9), submit(2, prompt=4, max_tokens=9)
"""Each may grow from one page to three: both together to more than there are."""


def crowded() -> Bench:
    """Both hold two pages, and both have seven tokens when their next forward comes back."""
    bench = Bench(CROWDED, pp=1)
    bench.tick(FIRST, SECOND, slot=0)
    for _ in range(4):
        bench.tick(land=1, slot=0)
    assert spans(bench.flying[-1]) == [(1, 7, 8, True), (2, 7, 8, True)]
    assert bench.available() == 0
    return bench


def test_the_latest_makes_room_for_an_older_one_and_keeps_its_tokens():
    bench = crowded()
    plan = bench.tick(land=1, slot=0)
    assert (plan.rows, bench.role.lengths()) == ((), (2, 1, 1))
    assert spans(bench.tick(slot=0)) == [(1, 8, 9, True)]
    notes = []
    while bench.flying or bench.can_run():
        notes += bench.tick(land=min(1, len(bench.flying)), slot=0).notes
    emitted = [note.index for note in notes if isinstance(note, Emitted) and note.room == room(2)]
    assert emitted == [5, 6, 7, 8], "what was told is not told again"
    assert Ended(room(2), Reason.LENGTH) in notes


def test_what_is_still_cached_of_it_is_not_computed_again():
    bench = crowded()
    bench.tick(land=1, slot=0)
    while bench.role.lengths() == (2, 1, 1):
        bench.tick(land=min(1, len(bench.flying)), slot=0)
    (row,) = bench.flying[-1].rows
    assert (row.room, row.end, row.samples) == (room(2), 9, True)
    assert row.start == 4, "the older one has taken one of its two pages"


def test_one_in_flight_makes_room_when_it_is_back():
    bench = Bench(CROWDED, pp=2)
    bench.tick(FIRST, SECOND, slot=0)
    bench.tick(land=1, slot=0)  # FIRST in slot 0, SECOND in slot 1
    for _ in range(3):
        bench.tick(slot=1)
        bench.tick(land=1, slot=0)
        bench.tick(land=1, slot=NO_SLOT)
    bench.tick(slot=1)
    assert spans(bench.flying[0]) == [(1, 7, 8, True)]
    plan = bench.tick(land=1, slot=0)
    assert (plan.rows, bench.role.lengths()) == ((), (2, 0, 2)), "its forward still uses its pages"
    assert not bench.can_run()
    assert told(bench.tick(land=1, slot=1), Emitted) == [Emitted(room(2), 4, bench._token)]
    assert bench.role.lengths() == (2, 1, 1)
    assert spans(bench.tick(slot=0)) == [(1, 8, 9, True)]


def test_a_victim_runs_no_more_although_its_own_pages_would_last():
    bench = Bench(Limits(page_size=4, num_pages=5, context=64, slot_rows=1), pp=2)
    bench.tick(FIRST, submit(2, prompt=5, max_tokens=9), slot=0)
    bench.tick(land=1, slot=0)  # the first in slot 0, the second in slot 1
    for _ in range(3):
        bench.tick(slot=1)
        bench.tick(land=1, slot=0)
        bench.tick(land=1, slot=NO_SLOT)
    bench.tick(slot=1)
    assert [spans(plan) for plan in bench.flying] == [[(1, 7, 8, True)], [(2, 8, 9, True)]]
    bench.tick(land=1, slot=0)
    plan = bench.tick(land=1, slot=1)
    assert (plan.rows, bench.role.lengths()) == ((), (2, 1, 1))
    assert spans(bench.tick(slot=0)) == [(1, 8, 9, True)]


def test_who_made_room_comes_before_those_that_came_later():
    bench = crowded()
    bench.tick(submit(3, prompt=4, max_tokens=2), land=1, slot=0)
    assert bench.role.lengths() == (3, 2, 1)
    rows: list[Row] = []
    while bench.flying or bench.can_run():
        rows += bench.tick(land=min(1, len(bench.flying)), slot=0).rows
    again = [int(row.room.rid) for row in rows if row.room != room(1)]
    assert again[0] == 2


# the end, wherever a request is


def ends(bench: Bench, number: int, *, at_once: bool) -> None:
    plan = bench.tick(abort(number), slot=NO_SLOT)
    assert told(plan, Ended) == [Ended(room(number), Reason.CLIENT_GONE)]
    assert told(plan, Forgotten) == ([Forgotten(room(number))] if at_once else [])
    assert told(bench.tick(abort(number), slot=NO_SLOT), Ended) == []
    while bench.flying:
        plan = bench.tick(land=1, slot=NO_SLOT)
        assert not told(plan, Emitted)
    assert (bench.role.lengths(), bench.available()) == ((0, 0, 0), bench.role.pool.num_pages)
    assert told(plan, Forgotten) == [Forgotten(room(number))] or at_once


def test_a_queued_request_ends_at_once():
    bench = Bench()
    bench.tick(Control(Order.PAUSE), submit(1), slot=NO_SLOT)
    ends(bench, 1, at_once=True)


def test_one_that_has_pages_and_nothing_in_flight_ends_at_once():
    bench = Bench()
    bench.tick(submit(1, prompt=20), slot=NO_SLOT)
    assert bench.role.lengths() == (1, 0, 1)
    ends(bench, 1, at_once=True)


def test_chunks_in_flight_keep_the_pages_until_the_last_of_them():
    bench = Bench()
    bench.tick(submit(1, prompt=20), slot=0)
    bench.tick(slot=1)
    bench.tick(abort(1), slot=NO_SLOT)
    assert told(bench.tick(land=1, slot=NO_SLOT), Forgotten) == []
    assert bench.available() < LIMITS.num_pages
    assert told(bench.tick(land=1, slot=NO_SLOT), Forgotten) == [Forgotten(room(1))]
    assert bench.available() == LIMITS.num_pages
    assert not bench.can_run(), "no further chunk is started"


def test_a_last_chunk_in_flight_is_not_told():
    bench = Bench()
    bench.tick(submit(1), slot=0)
    ends(bench, 1, at_once=False)


def test_a_running_request_ends_when_its_forward_is_back():
    bench = Bench(pp=1)
    bench.tick(submit(1), slot=0)
    bench.tick(land=1, slot=0)
    ends(bench, 1, at_once=False)


def test_a_running_request_with_nothing_in_flight_ends_at_once():
    bench = Bench(pp=1)
    bench.tick(submit(1), slot=0)
    bench.tick(land=1, slot=NO_SLOT)
    ends(bench, 1, at_once=True)


def test_a_victim_may_end_before_it_has_made_room():
    bench = Bench(CROWDED, pp=1)
    bench.tick(FIRST, SECOND, slot=0)
    while bench.role.lengths() != (2, 1, 1):
        bench.tick(land=1, slot=0)
    plan = bench.tick(abort(2), slot=0)
    assert told(plan, Forgotten) == [Forgotten(room(2))]
    assert Ended(room(1), Reason.LENGTH) in bench.run()


def test_a_deadline_ends_exactly_those_that_are_late():
    bench = Bench()
    bench.tick(submit(1, remaining_ms=10), submit(2, remaining_ms=20), slot=NO_SLOT)
    assert bench.role.wake_ms() == 10
    bench.now_ms = 10
    assert told(bench.tick(slot=NO_SLOT), Ended) == [Ended(room(1), Reason.DEADLINE)]
    assert bench.role.wake_ms() == 20


def test_what_cannot_be_taken_is_answered():
    bench = Bench(Limits(page_size=4, num_pages=4, context=64, max_rooms=1))
    assert told(bench.tick(submit(1, prompt=12, max_tokens=6), slot=NO_SLOT), Ended) == [
        Ended(room(1), Reason.TOO_LARGE)
    ]
    plan = bench.tick(submit(2), submit(3), slot=NO_SLOT)
    assert plan.notes == (Ended(room(3), Reason.QUEUE_FULL), Forgotten(room(3)))
    plan = bench.tick(Control(Order.DRAIN), submit(4), slot=NO_SLOT)
    assert plan.notes == (Ended(room(4), Reason.DRAINING), Forgotten(room(4)))


def test_an_abort_of_a_room_that_is_not_here_is_remembered():
    bench = Bench()
    assert bench.tick(abort(9), slot=NO_SLOT).notes == (Forgotten(room(9)),)
    assert bench.tick(submit(9), slot=NO_SLOT).rows == ()


def test_nothing_is_transferred():
    bench = Bench()
    assert bench.role.polls() == {}
    bench.tick(submit(9), slot=NO_SLOT)
    with pytest.raises(IllegalTransition):
        bench.role.on_verdict(Verdict(room(9), Kind.TRANSFERRED))
    with pytest.raises(IllegalTransition):
        bench.role.on_outcome(Ask(Question.PREALLOC, room(1)), True, 0)
    bench.tick(submit(1), FirstToken(room(1), 7), slot=0)
    courier = build_courier(Group(RoleName.COLOCATED, "c0", (1,)), LEADER, LIMITS)
    assert (courier.on_plan(bench.flying[0]), courier.on_event(submit(1)), courier.open_rooms()) == ([], [], 0)
    with pytest.raises(IllegalTransition):
        courier.answer(Ask(Question.PREALLOC, room(1)))


def test_equal_frames_give_equal_plans():
    one, other = Bench(CROWDED), Bench(CROWDED)
    for bench in (one, other):
        bench.run(FIRST, SECOND, submit(3))
    assert one.scheduler.digest == other.scheduler.digest


# the table

LEGAL = """
COMPILING COMPILED        QUEUED
COMPILING ENDED           GONE
QUEUED    ADMITTED        FILLING
QUEUED    ENDED           GONE
FILLING   FILLED          RUNNING
FILLING   ENDED           GONE
FILLING   ENDED_IN_FLIGHT FINISHING
RUNNING   MADE_ROOM       QUEUED
RUNNING   ENDED           GONE
RUNNING   ENDED_IN_FLIGHT FINISHING
FINISHING HARVESTED       GONE
"""


@pytest.mark.parametrize(("state", "happened"), [*product(State, Input)])
def test_every_pair_of_state_and_input_moves_on_or_raises(state: State, happened: Input):
    lines = [line.split() for line in LEGAL.strip().splitlines()]
    edges = {(State[one], Input[what]): State[to] for one, what, to in lines}
    request = Request(submit(1).work, Place(0, 1), state)
    if (state, happened) in edges:
        assert request.move(happened) is edges[state, happened]
    else:
        with pytest.raises(IllegalTransition, match=happened.value):
            request.move(happened)
    assert edges.keys() == NEXT.keys()


# the queue


class Waiting:
    def __init__(self, due_ms: int, number: int) -> None:
        self.place = Place(due_ms, number)


def test_places_decide_and_whoever_comes_back_has_the_old_one():
    queue: Queue[Waiting] = Queue()
    late, early, same = Waiting(5, 1), Waiting(3, 2), Waiting(5, 3)
    for one in (same, late, early):
        queue.add(one)
    for expected in (early, late, same):
        assert queue.head is expected
        queue.discard(expected)
    queue.discard(late)
    assert (queue.head, len(queue)) == (None, 0)


# what looks back, and grammars

JSON = '{"type":"object"}'


def test_rows_that_sample_know_all_before_if_they_look_back():
    bench = Bench()
    bench.tick(like_looking_back(1, prompt=10), slot=0)
    bench.tick(land=1, slot=1)
    rows = [row for plan in (bench.flying[-1], bench.tick(land=1), bench.tick(land=1)) for row in plan.rows]
    told = [(row.past[10:], row.generated, row.grammar) for row in rows if row.samples]
    assert told == [((), 2, ""), ((2,), 3, ""), ((2, 3), 4, "")]
    assert all(row.past[:10] == tuple(range(100, 110)) for row in rows if row.samples)


def like_looking_back(number: int, prompt: int) -> Submit:
    work = submit(number, prompt).work
    return Submit(replace(work, sampling=Sampling(repetition_penalty=1.5), generated=2), 60_000)


def test_who_is_computed_anew_looks_back_at_its_answer():
    request = Request(like_looking_back(1, prompt=3).work, Place(0, 1))
    request.add(7)
    request.pages = (PageId(0),)
    row = request.chunk(8, 4)
    assert (row.tokens, row.past, row.generated) == ((100, 101, 102, 7), (100, 101, 102, 7), 3)


def test_the_first_token_says_how_much_of_the_prompt_was_cached():
    bench = Bench()
    bench.run(like(1, tuple(range(10))))
    told = [note for note in bench.run(like(2, tuple(range(10)))) if isinstance(note, Emitted)]
    assert [note.cached for note in told[:2]] == [8, 0]


def test_a_request_waits_for_its_grammar_and_holds_nobody_up():
    bench = Bench()
    assert bench.tick(submit(1, grammar=JSON)).notes == (Uncompiled(room(1), JSON),)
    assert not bench.flying
    bench.run(submit(2, max_tokens=1))
    assert bench.role.on_verdict(Verdict(room(1), Kind.COMPILED)) == []
    assert [row.grammar for row in bench.tick(slot=0).rows] == [JSON]


def test_a_bad_grammar_ends_its_request():
    bench = Bench()
    bench.tick(submit(1, grammar=JSON))
    notes = bench.role.on_verdict(Verdict(room(1), Kind.BAD_GRAMMAR))
    assert notes == [Ended(room(1), Reason.BAD_GRAMMAR), Forgotten(room(1))]


@pytest.mark.parametrize("fed", [0, 1])
def test_one_without_numbers_ends_alone(fed: int):
    """Its prompt's last chunk, or a later token."""
    bench = Bench()
    bench.tick(submit(1), slot=0)
    for _ in range(fed):
        bench.tick(land=1, slot=0)
    (plan,) = bench.flying
    rows = [row.room for row in plan.rows]
    tick = Tick(bench.scheduler.tick + 1)
    harvest = Harvest(plan.tick, tuple((one, ()) for one in rows))
    after = bench.scheduler.step(Frame(tick, Slot(0), 0, (), (), (harvest,)))
    assert after.notes == (Ended(room(1), Reason.NOT_A_NUMBER), Forgotten(room(1)))
    assert bench.available() == LIMITS.num_pages
