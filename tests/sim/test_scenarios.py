"""Named failures of systems of this kind, each as a run in virtual time that must end well.

The numbers are those of the scenario list. Every run ends with the same oracle: equal digests at every tick on every
rank, one right answer per request, nothing left on any rank.
"""

import random
from collections import deque
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from decode.intake import State
from tandem.core.config import Group, Limits, RoleName, split_layers
from tandem.core.effects import Effect, Observe
from tandem.core.events import Combined, Compiled, Event, PeerLost, PeerOpened
from tandem.core.ids import LEADER, RankId, RequestId, Room
from tandem.core.inputs import Control, FirstToken, Frame, Kind, Order, Verdict
from tandem.core.messages import Cancel, Fact, Progress
from tandem.core.plan import Note, Plan
from tandem.core.requests import Reason, Sampling, Work, pages_for
from tandem.core.scheduler import Scheduler
from tandem.engine.grammar import JSON_OBJECT
from tandem.sim.case import BAD_GRAMMAR, LAYERS, PAIR
from tandem.sim.client import Client
from tandem.sim.clock import Action, Clock
from tandem.sim.faults import Fault
from tandem.sim.node import Node
from tandem.sim.run import build_engine, content_of
from tandem.sim.world import Cluster, Pace, World
from tandem.sim.writes import Writes

SIZES = [2, 3, 4, 8]
LIMITS = Limits(page_size=4, num_pages=64, context=96, chunked_prefill_size=8, max_prefill_tokens=16)
DEADLINE_MS = 60_000


def work(number: int, prompt: int = 10, max_tokens: int = 4) -> Work:
    tokens = tuple(32 + (7 * number + index) % 90 for index in range(prompt))
    return Work(Room(RequestId(number), 1), tokens, max_tokens, (), Sampling(), None)


class Run:
    """A prefill and a decode group, and the router's oracle."""

    def __init__(self, prefill: int, decode: int, *, limits: Limits = LIMITS, pace: Pace | None = None) -> None:
        groups = (
            Group(RoleName.PREFILL, "p0", split_layers(LAYERS, prefill)),
            Group(RoleName.DECODE, "d0", split_layers(LAYERS, decode)),
        )
        self.client = Client(content_of)
        self.world = World(7, Cluster(groups, limits, pace or Pace()), build_engine, self.client)
        self.limits = limits

    def submit(self, *works: Work, remaining_ms: int = DEADLINE_MS) -> None:
        for each in works:
            self.world.router.submit(each, PAIR, remaining_ms)

    def head(self, group: str) -> Node:
        return self.world.node(group, LEADER)

    def ranks(self, group: str) -> list[Node]:
        return [node for node in self.world.nodes if node.rank.place.group == group]

    def until(self, condition: Callable[[], bool]) -> None:
        """Let things happen until the condition holds."""
        while not condition():
            assert self.world.clock.advance(), "it never came to that"

    def state(self, number: int) -> State | None:
        """Where decode's rank 0 has a request."""
        requests = self.head("d0").rank.scheduler.role._requests
        request = requests.get(Room(RequestId(number), 1))
        return request and request.state

    def landed(self, number: int) -> bool:
        """Whether the transferred verdict is in, on every rank of decode."""
        tables = [node.rank.scheduler.role._requests for node in self.ranks("d0")]
        return all((one := table.get(Room(RequestId(number), 1))) and one.landed for table in tables)

    def ended(self) -> dict[int, Reason | None]:
        """Runs to the end, holds the oracle against it; why each request has ended."""
        self.world.run()
        self.client.check()
        self.world.check_at_rest()
        return {int(answer.work.room.rid): answer.ended for answer in self.client.answers.values()}


@pytest.fixture(params=SIZES, ids=lambda size: f"P{size}")
def size(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


class Held:
    """Events of one kind that do not reach a rank until they are let go."""

    def __init__(self, node: Node, matches: Callable[[Event], bool]) -> None:
        self.events: list[Event] = []
        self._node = node
        self._matches = matches
        self._take = node.rank.on
        node.rank.on = self._on  # type: ignore[method-assign]

    def _on(self, event: Event, now_ms: int) -> list[Effect]:
        if not self._matches(event):
            return self._take(event, now_ms)
        self.events.append(event)
        return []

    def release(self) -> None:
        """They come now, in their order, and nothing is held any more."""
        self._node.rank.on = self._take  # type: ignore[method-assign]
        for event in self.events:
            self._node.on(event)


def digests(run: Run, group: str) -> list[tuple[int, int]]:
    """(tick, digest) of every rank now."""
    return [(node.rank.scheduler.tick, node.rank.scheduler.digest) for node in run.ranks(group)]


# divergence


def test_s01_an_abort_storm_while_handshakes_finish(size: int):
    """Ranks know different peers when the clients leave: no rank may act on what it alone has seen."""
    run = Run(size, size, pace=Pace(handshake_us=(0, 20_000)))
    works = [work(number) for number in range(1, 25)]
    run.submit(*works)
    for number, each in enumerate(works[:-2]):
        run.world.clock.at(900 * number, lambda each=each: run.world.router.cancel(each, PAIR))
    ended = run.ended()
    assert ended[23] is ended[24] is Reason.LENGTH
    assert Reason.CLIENT_GONE in ended.values()


def test_s02_an_abort_between_vote_and_apply(size: int):
    """Every rank has voted yes, the outcome is on its way: the abort and the outcome meet on all ranks at one tick."""
    run = Run(2, size)
    run.submit(work(1), work(2))
    run.until(lambda: run.state(1) is State.ASKING and bool(run.ranks("d0")[-1].rank.courier.open_rooms()))
    run.world.router.cancel(work(1), ("d0",))
    assert run.ended() == {1: Reason.CLIENT_GONE, 2: Reason.LENGTH}


@pytest.mark.parametrize("late", ["first", "last"])
def test_s03_an_abort_while_one_sender_never_leaves_bootstrapping(size: int, late: str):
    """One prefill rank never meets its decode rank: no orphan stays in that rank's queue."""
    run = Run(size, size)
    rank = RankId(0 if late == "first" else size - 1)
    held = Held(run.world.node("p0", rank), lambda event: type(event).__name__ == "PeerOpened")
    run.submit(work(1), work(2))
    run.world.clock.at(5_000_000, lambda: run.world.router.cancel(work(1), PAIR))
    run.world.clock.at(6_000_000, lambda: run.world.router.cancel(work(2), ("p0",)))
    assert run.ended() == {1: Reason.CLIENT_GONE, 2: Reason.CLIENT_GONE}
    assert held.events


def test_s04_one_rank_has_all_of_the_kv_and_another_has_failed(size: int):
    """Both have finished, with different ends: all ranks end the request as failed, at the same tick."""
    run = Run(size, size)
    run.submit(work(1), work(2))
    last = run.ranks("d0")[-1]
    run.until(lambda: run.state(1) is State.TRANSFERRING)
    held = Held(run.head("d0"), lambda event: isinstance(event, FirstToken) and event.room == work(1).room)
    run.until(lambda: bool(held.events))
    last.store.observe(Observe(work(1).room, Fact(failed=True)))
    last.store.flush()
    held.release()
    ended = run.ended()
    assert ended == {1: Reason.TRANSFER_FAILED, 2: Reason.LENGTH}


def test_s05_a_failure_that_only_rank_0_knows(size: int):
    """It is a fact like any other rank's: the verdict takes the others along."""
    run = Run(size, size)
    run.submit(work(1, prompt=30))
    run.until(lambda: run.state(1) is State.TRANSFERRING)
    run.head("p0").on(PeerLost("d0", LEADER))
    assert run.ended() == {1: Reason.TRANSFER_FAILED}


def test_s06_the_kv_is_everywhere_before_the_first_token(size: int):
    """Readiness counts KV and its metadata: nobody runs until both are in a frame, then all do at one tick."""
    run = Run(2, size)
    run.submit(work(1))
    held = Held(run.head("d0"), lambda event: isinstance(event, FirstToken))
    run.until(lambda: bool(held.events) and run.landed(1) and len(set(digests(run, "d0"))) == 1)
    assert run.state(1) is State.TRANSFERRING
    assert len(set(digests(run, "d0"))) == 1
    held.release()
    assert run.ended() == {1: Reason.LENGTH}


def compiled(run: Run, group: str) -> list[list[Room]]:
    """In which order each rank was told that grammars are compiled."""
    orders: list[list[Room]] = []
    for node in run.ranks(group):
        order: list[Room] = []
        orders.append(order)
        on_verdict = node.rank.scheduler.role.on_verdict

        def note(verdict: Verdict, on_verdict=on_verdict, order=order) -> list[Note]:
            order.extend([verdict.room] if verdict.kind is Kind.COMPILED else [])
            notes: list[Note] = on_verdict(verdict)
            return notes

        node.rank.scheduler.role.on_verdict = note  # type: ignore[method-assign]
    return orders


def test_s07_grammars_become_ready_in_any_order(size: int):
    """Every rank queues the eight in the order of the frames, whenever its own copy is ready: and rank 0 says when."""
    run = Run(size, size, limits=msgspec.structs.replace(LIMITS, num_pages=8))
    rng = random.Random(7)
    for node in run.world.nodes:
        node.compiling.put = lambda job, node=node: run.world.clock.after(  # type: ignore[method-assign]
            rng.randrange(50_000), lambda: node.on(Compiled(job.room, ok=True))
        )
    orders = {group: compiled(run, group) for group in PAIR}
    works = [msgspec.structs.replace(work(number), grammar=JSON_OBJECT) for number in range(1, 9)]
    run.submit(*works)
    assert set(run.ended().values()) == {Reason.LENGTH}
    for told in orders.values():
        assert all(order == told[0] for order in told)
        assert sorted(told[0]) == [each.room for each in works] != told[0]
    assert orders["p0"][0] != orders["d0"][0]


@pytest.mark.parametrize("late", PAIR)
def test_s07_a_bad_grammar_ends_its_request_alone(size: int, late: str):
    """Either group may be the first to find out; the other one is told."""
    run = Run(2, size)
    head = run.head(late)
    put = head.compiling.put
    head.compiling.put = lambda job: run.world.clock.after(1_000_000, lambda: put(job))  # type: ignore[method-assign]
    run.submit(work(1), msgspec.structs.replace(work(2), grammar=BAD_GRAMMAR), work(3))
    run.until(lambda: run.client.answer(work(2).room).ended is not None)
    assert run.world.clock.now_us < 1_000_000, "the other group has not found out yet"
    assert run.ended() == {1: Reason.LENGTH, 2: Reason.BAD_GRAMMAR, 3: Reason.LENGTH}


def test_s08_only_rank_0s_clock_ends_a_request(size: int):
    """The other ranks' clocks are off by ten seconds both ways, and deadlines fall between two events."""
    run = Run(size, size)
    for group in PAIR:
        for node in run.ranks(group)[1:]:
            skew_ms = 10_000 if node.rank.place.rank % 2 else -10_000
            node.rank.on = skewed(node.rank.on, skew_ms)  # type: ignore[method-assign]
    for number in range(1, 21):
        run.submit(work(number), remaining_ms=number)
    run.submit(work(99))
    ended = run.ended()
    assert ended[99] is Reason.LENGTH
    assert Reason.DEADLINE in ended.values()


def skewed(on: Callable[[Event, int], list[Effect]], skew_ms: int) -> Callable[[Event, int], list[Effect]]:
    return lambda event, now_ms: on(event, now_ms + skew_ms)


def test_s09_a_deadline_of_a_request_in_another_slot(size: int):
    """The tick that notices names one slot, the request runs in another: it ends all the same, on every rank."""
    run = Run(2, size)
    run.submit(*(work(number, max_tokens=40) for number in range(1, 2 * size + 1)))
    late = work(50, max_tokens=60)
    run.submit(late, remaining_ms=12)
    ended = run.ended()
    assert ended.pop(50) is Reason.DEADLINE
    assert set(ended.values()) == {Reason.LENGTH}


def test_s11_an_abort_ends_exactly_one_request(size: int):
    """Not those whose ids begin alike, nor another attempt of the same request."""
    run = Run(size, 2)
    run.submit(work(1), work(10), work(11), work(12))
    run.world.router.cancel(work(1), PAIR)
    for group in PAIR:
        run.world.router.to_group(group, Cancel(Room(RequestId(12), 2), Reason.CLIENT_GONE))
    assert run.ended() == {1: Reason.CLIENT_GONE, 10: Reason.LENGTH, 11: Reason.LENGTH, 12: Reason.LENGTH}


def test_s13_a_request_comes_back_while_facts_of_its_last_attempt_are_on_their_way(size: int):
    """A transfer fails and is tried again at once; one rank's facts of the first attempt come a second later."""
    run = Run(size, size)
    run.world.router.submit(work(1, prompt=30), PAIR, DEADLINE_MS, retries=1)
    run.until(lambda: run.state(1) is State.TRANSFERRING)
    slow = run.ranks("d0")[-1]
    deliver = slow.store.flush
    slow.store.flush = lambda: None  # type: ignore[method-assign]
    run.world.clock.after(1_000_000, lambda: (setattr(slow.store, "flush", deliver), deliver()))
    run.head("p0").on(PeerLost("d0", LEADER))
    run.world.clock.after(100, lambda: run.head("p0").on(PeerOpened(run.head("d0").hello)))
    assert run.ended() == {1: Reason.LENGTH}
    assert run.client.answer(work(1).room).attempt.room.attempt == 2


def test_s14_a_store_update_is_ten_seconds_late(size: int):
    """Waiting is not failing: the request goes on when the fact is there, and others meanwhile."""
    run = Run(2, size)
    slow = run.ranks("d0")[-1]
    deliver = slow.store.flush
    slow.store.flush = lambda: None  # type: ignore[method-assign]
    run.world.clock.at(10_000_000, lambda: (setattr(slow.store, "flush", deliver), deliver()))
    run.submit(work(1))
    run.world.run()
    assert run.world.clock.now_us >= 10_000_000
    assert run.ended() == {1: Reason.LENGTH}


# latency and liveness


def test_s16_what_the_last_rank_observes_is_applied_by_the_next_tick(size: int):
    """From the last fact's arrival at rank 0 to the verdict there are no ring rounds: the next frame carries it."""
    run = Run(2, size)
    run.submit(*(work(number, prompt=40, max_tokens=20) for number in range(1, 6)))
    head, seen = run.head("d0"), []
    take = head.on

    def on(event: Event) -> None:
        before = head.rank.scheduler.tick
        take(event)
        if type(event).__name__ == "Combined" and event.fact is not None and event.fact.progress == 4:
            role = head.rank.scheduler.role
            seen.append((event.room, head.rank.scheduler.tick - before, role._requests[event.room].landed))

    head.on = on  # type: ignore[method-assign]
    assert set(run.ended().values()) == {Reason.LENGTH}
    first = {}
    for room, ticks, landed in seen:
        first.setdefault(room, (ticks, landed))
    assert len(first) == 5
    idle = [landed for ticks, landed in first.values() if ticks]
    assert all(idle), "a tick was opened without the verdict that was there"


def test_s21_an_idle_cluster_does_nothing(size: int):
    """No ticks, no messages, no timers: the event queue is empty, and the next request starts at once."""
    run = Run(size, size)
    run.submit(work(1))
    assert run.ended() == {1: Reason.LENGTH}
    assert not run.world.clock.advance()
    run.submit(work(2))
    head = run.head("p0")
    before, arrived_us, take = head.rank.scheduler.tick, [], head.on

    def on(event: Event) -> None:
        arrived_us.append(run.world.clock.now_us)
        take(event)

    head.on = on  # type: ignore[method-assign]
    run.until(lambda: head.rank.scheduler.tick > before)
    assert run.world.clock.now_us == arrived_us[0], "the request's own arrival opens the tick"
    assert run.ended()[2] is Reason.LENGTH


class Unbuffered:
    """A link without buffers: a send is over when the receiver takes it, and who computes takes nothing."""

    def __init__(self, clock: Clock, receiver: Node) -> None:
        self._clock = clock
        self._receiver = receiver
        self._waiting: deque[Action] = deque()

    def send(self, deliver: Action) -> None:
        self._waiting.append(deliver)
        if len(self._waiting) == 1:
            self._clock.after(10, self._match)

    def _match(self) -> None:
        if self._receiver.compute._busy:
            self._clock.after(10, self._match)
            return
        deliver = self._waiting[0]
        deliver()
        self._waiting.popleft()
        if self._waiting:
            self._clock.after(10, self._match)


def test_s24_no_ring_waits_for_itself_without_buffers(size: int, monkeypatch: pytest.MonkeyPatch):
    """Every send of every link waits until it is matched: for odd and even rings nobody waits in a circle."""
    run = Run(size, size)
    links: dict[tuple[Node, Node, str], Unbuffered] = {}

    def send(sender: Node, receiver: Node, link: str, deliver: Action) -> None:
        key = (sender, receiver, link)
        if key not in links:
            links[key] = Unbuffered(run.world.clock, receiver)
        links[key].send(deliver)

    monkeypatch.setattr(run.world, "send", send)
    run.submit(*(work(number, prompt=30) for number in range(1, 9)))
    assert set(run.ended().values()) == {Reason.LENGTH}


# transfers that go wrong


def striking(monkeypatch: pytest.MonkeyPatch, kind: Fault, times: int) -> None:
    """The first writes suffer this, the others do not."""
    left = [kind] * times
    monkeypatch.setattr(Writes, "_strikes", lambda writes, asked: asked in left and left.pop() is kind)


@pytest.mark.parametrize(("times", "ended"), [(1, Reason.LENGTH), (100, Reason.KV_CHECKSUM)])
def test_kv_that_is_damaged_on_its_way_is_sent_once_more(
    size: int, times: int, ended: Reason, monkeypatch: pytest.MonkeyPatch
):
    """A bit has changed in one block: the request is never decoded from it, and ends by name if it happens again."""
    striking(monkeypatch, Fault.CORRUPTED_WRITES, times)
    run = Run(size, 2, limits=msgspec.structs.replace(LIMITS, checksum_sample=1))
    run.world.router.submit(work(1, prompt=4), PAIR, DEADLINE_MS, retries=1)
    assert run.ended() == {1: ended}


@pytest.mark.parametrize("consensus", ["store", "ring"])
def test_s27_s28_pages_of_a_write_that_may_still_land_come_back_by_fences(
    size: int, consensus: str, monkeypatch: pytest.MonkeyPatch
):
    """Each group waits for the other's word in vain, cuts it off, and has its pages back; then they meet anew."""
    striking(monkeypatch, Fault.UNSETTLED_WRITES, 1)
    limits = msgspec.structs.replace(LIMITS, quiesce_ms=50, transfer_consensus=consensus)
    run = Run(size, size, limits=limits)
    run.submit(work(1, prompt=30))
    assert run.ended() == {1: Reason.TRANSFER_FAILED}
    assert run.world.clock.now_us >= 50_000
    assert run.world.fences >= size
    run.submit(work(2, prompt=30))
    assert run.ended()[2] is Reason.LENGTH


@pytest.mark.parametrize("group", PAIR)
def test_an_operator_releases_what_is_held_for_a_peer_at_once(size: int, group: str, monkeypatch: pytest.MonkeyPatch):
    """Long before the group would have lost its patience."""
    striking(monkeypatch, Fault.UNSETTLED_WRITES, 1)
    run = Run(size, size)
    run.submit(work(1, prompt=30))
    run.until(lambda: bool(run.head(group).rank.scheduler.role.held()))
    assert run.world.clock.now_us < 1_000_000
    run.world.clock.after(300_000, lambda: [run.world.router.to_group(*order) for order in releases()])
    run.world.run(until_us=1_000_000)
    assert run.head(group).rank.scheduler.role.held() == []
    assert run.ended() == {1: Reason.TRANSFER_FAILED}


def releases() -> list[tuple[str, Control]]:
    return [(one, Control(Order.RELEASE, other)) for one, other in (PAIR, PAIR[::-1])]


def test_a_first_token_that_is_lost_with_its_session_does_not_keep_the_client_waiting(size: int):
    """All KV is at decode, and both groups' rank 0 lose each other while token 0 is on its way."""
    run = Run(2, size, limits=msgspec.structs.replace(LIMITS, quiesce_ms=50))
    run.world.router.submit(work(1), PAIR, DEADLINE_MS, retries=1)
    prefill, decode = run.head("p0"), run.head("d0")
    held = Held(decode, lambda event: isinstance(event, FirstToken))
    run.until(lambda: bool(held.events) and run.landed(1))
    held.events.clear()
    held.release()
    run.world.part(prefill, decode, (0, 0), 1_000)
    assert run.ended() == {1: Reason.LENGTH}
    assert run.client.answer(work(1).room).attempt.room.attempt == 2
    assert run.world.ticks.busy_until_us < 1_000_000


# making room


def chatty(number: int, **more: int) -> Work:
    """A request that begins small and grows."""
    return work(number, prompt=4, max_tokens=60, **more)


def orders(run: Run) -> list[str]:
    """Names of the notes of decode's rank 0, as they come."""
    seen: list[str] = []
    scheduler = run.head("d0").rank.scheduler
    step = scheduler.step

    def watched(frame: Frame) -> Plan:
        plan = step(frame)
        seen.extend(type(note).__name__ for note in plan.notes)
        return plan

    scheduler.step = watched  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("depth", [0, 2])
def test_s22_nobody_makes_room_where_exact_accounting_fits(size: int, depth: int):
    """Requests in all slots together need at most what there is: no admission may lead to a retraction."""
    works = [chatty(number) for number in range(1, 9)]
    pages = sum(pages_for(each.last_position, LIMITS.page_size) for each in works)
    run = Run(2, size, limits=msgspec.structs.replace(LIMITS, num_pages=pages, async_depth=depth))
    notes = orders(run)
    run.submit(*works)
    assert set(run.ended().values()) == {Reason.LENGTH}
    assert "Granted" in notes
    assert not {"Retracted", "Evicted"}.intersection(notes)


@pytest.mark.parametrize("host_pages", [100, 0], ids=["with backup", "without"])
def test_s22_who_makes_room_loses_no_token(size: int, host_pages: int):
    """Half of what is needed: the latest give their pages up and go on later, or are computed anew."""
    run = Run(2, size, limits=msgspec.structs.replace(LIMITS, num_pages=30, host_pages=host_pages))
    notes = orders(run)
    run.submit(*(chatty(number) for number in range(1, 9)))
    assert set(run.ended().values()) == {Reason.LENGTH}
    assert ("Retracted" if host_pages else "Evicted") in notes
    assert notes.count("Resumed") == notes.count("Retracted")


def test_s23_a_retracted_request_hears_old_news(size: int):
    """Its Success and its first token come again while its pages are on the host: it comes back all the same."""
    run = Run(2, size, limits=msgspec.structs.replace(LIMITS, num_pages=30))
    run.submit(*(chatty(number) for number in range(1, 9)))
    head = run.head("d0")
    table = head.rank.scheduler.role._requests
    run.until(lambda: any(request.state is State.RETRACTED for request in table.values()))
    room = next(room for room, request in table.items() if request.state is State.RETRACTED)
    head.on(Combined(room, Fact(Progress.SUCCESS, backups=1)))
    head.on(FirstToken(room, 99))
    for node in run.ranks("d0"):
        node.store.observe(Observe(room, Fact(Progress.SUCCESS)))
        node.store.flush()
    assert set(run.ended().values()) == {Reason.LENGTH}


# an operator


def changes(run: Run, group: str, look: Callable[[Scheduler], object]) -> dict[int, list[tuple[int, object]]]:
    """For each rank, the ticks at which what one looks at changed, and to what."""
    seen: dict[int, list[tuple[int, object]]] = {}
    for node in run.ranks(group):
        watch(node.rank.scheduler, look, seen.setdefault(node.rank.place.rank, []))
    return seen


def watch(scheduler: Scheduler, look: Callable[[Scheduler], object], seen: list[tuple[int, object]]) -> None:
    step = scheduler.step

    def watched(frame: Frame) -> Plan:
        before = look(scheduler)
        plan = step(frame)
        if look(scheduler) != before:
            seen.append((frame.tick, look(scheduler)))
        return plan

    scheduler.step = watched  # type: ignore[method-assign]


@pytest.mark.parametrize("group", PAIR)
def test_s26_a_pause_begins_and_ends_at_one_tick_on_all_ranks_and_slots(size: int, group: str):
    """While it lasts no forward begins anywhere in the group, and nothing is lost."""
    run = Run(size, size, limits=msgspec.structs.replace(LIMITS, async_depth=1))
    paused = changes(run, group, lambda scheduler: scheduler.controls.paused)
    rows = changes(run, group, lambda scheduler: scheduler.controls.paused and len(scheduler.flights))
    run.submit(*(work(number, prompt=30, max_tokens=30) for number in range(1, 9)))
    run.world.clock.at(3_000, lambda: run.world.router.to_group(group, Control(Order.PAUSE)))
    run.world.clock.at(400_000, lambda: run.world.router.to_group(group, Control(Order.RESUME)))
    assert set(run.ended().values()) == {Reason.LENGTH}
    assert [to for _, to in paused[0]] == [True, False]
    assert all(each == paused[0] for each in paused.values())
    assert all([count for _, count in each] == sorted((c for _, c in each), reverse=True) for each in rows.values())


def test_s26_a_drain_refuses_at_one_tick_and_finishes_what_is_there(size: int):
    """Also what has to be computed anew because its pages were needed: it was there before."""
    run = Run(2, size, limits=msgspec.structs.replace(LIMITS, num_pages=30, host_pages=0))
    draining = changes(run, "d0", lambda scheduler: scheduler.controls.draining)
    notes = orders(run)
    run.submit(*(chatty(number) for number in range(1, 7)))
    run.world.clock.at(5_000, lambda: [run.world.router.to_group(group, Control(Order.DRAIN)) for group in PAIR])
    run.world.clock.at(9_000, lambda: run.submit(work(50)))
    run.world.clock.at(9_000_000, lambda: [run.world.router.to_group(group, Control(Order.RESUME)) for group in PAIR])
    ended = run.ended()
    assert ended.pop(50) is Reason.DRAINING
    assert set(ended.values()) == {Reason.LENGTH}
    assert "Evicted" in notes
    assert [to for _, to in draining[0]] == [True, False]
    assert all(each == draining[0] for each in draining.values())


@pytest.mark.parametrize("group", PAIR)
def test_s26_a_flush_forgets_at_one_tick_on_all_ranks(size: int, group: str):
    """Cached prefixes are gone, those in use are not found again; who uses them goes on."""
    run = Run(size, size)
    cached = changes(run, group, lambda scheduler: scheduler.role.pool.counts()["cached"])
    run.submit(work(1, prompt=30))
    run.world.run()
    again = work(2, prompt=30)
    run.submit(msgspec.structs.replace(again, prompt=work(1, prompt=30).prompt))
    run.world.router.to_group(group, Control(Order.FLUSH))
    run.world.run()
    run.client.check()
    run.world.check_at_rest()
    assert all(each == cached[0] for each in cached.values())
    counts = [count for _, count in cached[0]]
    assert counts[0] > 0
    assert any(later < earlier for earlier, later in pairwise(counts)), "the flush has freed something"
