"""Decode's replicated half under any history: everyone ends once, nobody waits for ever, no page is touched by two."""

import random
from collections import Counter, deque
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from decode.admission import RETRY_MS
from decode.role import DecodeRole
from tandem.core.config import Limits
from tandem.core.ids import PageId, RequestId, Room, Slot, Tick
from tandem.core.inputs import Abort, FirstToken, Kind, Submit, Verdict
from tandem.core.plan import MAX_ASKS, Ask, Emitted, Ended, Evicted, Forgotten, Granted, Note, Resumed, Retracted
from tandem.core.requests import Reason, Sampling, Work
from tandem.core.slots import Flights

SIZE = 4
NEVER_MS = 10**9
MOST_MOVES = 50_000


class History:
    """A decode role, and a world that does in any order what there is to do. Every move is a frame, with a decision."""

    def __init__(self, rng: random.Random, limits: Limits, slots: int, yes: float = 1.0, leaving: float = 0.0) -> None:
        self.rng = rng
        self.leaving = leaving  # share of the moves after which a client leaves
        self.yes = yes  # share of the votes
        self.role = DecodeRole(limits, slots)
        self.flights = Flights()
        self.flying: deque[Tick] = deque()
        self.votes: deque[Ask] = deque()
        self.coming: dict[Room, list[Callable[[], None]]] = {}  # what the prefill group still does, in order
        self.writing: dict[Room, tuple[PageId, ...]] = {}  # where it may still write
        self.copies: dict[Room, Retracted] = {}  # to the host
        self.restores: dict[Room, tuple[Tick, tuple[PageId, ...]]] = {}  # back, ordered after that tick
        self.backups: Counter[Room] = Counter()
        self.told: dict[Room, list[Note]] = {}
        self.tick, self.slot, self.now_ms = Tick(0), Slot(0), 0

    def room(self, number: int) -> Room:
        return Room(RequestId(number), 1)

    # moves

    def submit(self, number: int, prompt: tuple[int, ...], max_tokens: int, priority: int = 0) -> None:
        work = Work(self.room(number), prompt, max_tokens, (0,), Sampling(), "p0", priority)
        self.told[work.room] = []
        self.hear(self.role.on_submit(Submit(work, NEVER_MS), self.now_ms))
        self.decide()

    def abort(self, room: Room) -> None:
        if self.role.knows(room):
            self.hear(self.role.on_abort(Abort(room, Reason.CLIENT_GONE)))
            self.decide()

    def move(self) -> bool:
        """One of the things that can happen now does. False if there is nothing."""
        moves: list[Callable[[], None]] = [self.land] * bool(self.flying) + [self.vote] * bool(self.votes)
        moves += [self.copied] * bool(self.copies) + [self.arrive] * bool(self.coming)
        runnable = self.next_slot()[1]
        if runnable:
            moves.append(lambda: None)
        if not moves and self.role._held.queue.wake_ms is not None:
            moves.append(self.wait)
        if not moves:
            return False
        self.rng.choice(moves)()
        self.decide()
        self.check()
        if self.rng.random() < self.leaving:
            self.abort(self.rng.choice(list(self.restores or self.told)))
            self.late_news()
            self.check()
        return True

    def next_slot(self) -> tuple[Slot, bool]:
        return self.role.next_slot(self.slot, self.flights, frozenset())

    def land(self) -> None:
        tick = self.flying.popleft()
        for row in self.flights.land(tick):
            self.hear(self.role.on_tokens(row, (self.rng.choice(range(200)),)))
        self.restores = {room: each for room, each in self.restores.items() if each[0] >= tick}

    def vote(self) -> None:
        self.hear(self.role.on_outcome(self.votes.popleft(), self.rng.random() < self.yes, self.now_ms))

    def copied(self) -> None:
        """All ranks have copied a room's pages. What is said of the copy before does not count for this one."""
        room = self.rng.choice(list(self.copies))
        if self.backups[room] > 1:
            self.verdict(room, Kind.BACKED_UP, self.backups[room] - 1)
            self.check()
        del self.copies[room]
        self.verdict(room, Kind.BACKED_UP, self.backups[room])

    def arrive(self) -> None:
        room = self.rng.choice(list(self.coming))
        self.coming[room].pop(0)()
        self.coming = {room: left for room, left in self.coming.items() if left and self.role.knows(room)}

    def wait(self) -> None:
        self.now_ms += RETRY_MS
        self.hear(self.role.expire(self.now_ms))

    def verdict(self, room: Room, kind: Kind, nth: int = 1) -> None:
        if kind in (Kind.TRANSFERRED, Kind.QUIET):
            self.writing.pop(room, None)
        if self.role.knows(room):
            self.hear(self.role.on_verdict(Verdict(room, kind, nth)))

    def first(self, room: Room) -> None:
        if self.role.knows(room):
            self.hear(self.role.on_first_token(FirstToken(room, 5)))

    def late_news(self) -> None:
        """What was true of a request that has run is said again."""
        for room, told in self.told.items():
            if any(isinstance(note, Emitted) for note in told):
                self.verdict(room, Kind.TRANSFERRED)
                self.first(room)
                for nth in range(1, self.backups[room] + (room not in self.copies)):
                    self.verdict(room, Kind.BACKED_UP, nth)

    def decide(self) -> None:
        self.slot, runnable = self.next_slot()
        decision = self.role.decide(self.slot, self.now_ms)
        self.tick = Tick(self.tick + 1)
        if decision.rows:
            self.flights.launch(self.tick, self.slot, decision.rows)
            self.flying.append(self.tick)
        elif runnable and not decision.asks and not decision.notes:
            again = self.role.next_slot(Slot(self.slot - 1), self.flights, frozenset())
            assert again != (self.slot, True), "the ring spins"
        assert len(decision.asks) <= MAX_ASKS
        self.votes += decision.asks
        self.hear(list(decision.notes))

    # what comes of it

    def hear(self, notes: list[Note]) -> None:
        for note in notes:
            told = self.told[note.room]
            assert not any(isinstance(each, Forgotten) for each in told), f"{note} comes after {told}"
            if isinstance(note, Emitted):
                assert note.index == sum(isinstance(each, Emitted) for each in told)
            told.append(note)
            self.act(note)

    def act(self, note: Note) -> None:
        match note:
            case Granted(room=room, pages=pages):
                self.writing[room] = pages
                news = [lambda: self.verdict(room, Kind.TRANSFERRED), lambda: self.first(room)]
                self.rng.shuffle(news)
                fails = self.rng.random() < 0.05
                gone = [lambda: self.verdict(room, Kind.FAILED)] if fails else []
                self.coming[room] = [*gone, *news[fails:], lambda: self.verdict(room, Kind.QUIET)]
            case Retracted(room=room):
                self.backups[room] += 1
                self.copies[room] = note
            case Resumed(room=room, pages=pages, host_pages=host_pages):
                assert len(pages) == len(host_pages)
                self.restores[room] = self.tick, pages
            case _:
                pass

    def check(self) -> None:
        """Nobody's pages are given to others while somebody may still touch them."""
        pool, host = self.role.pool, self.role._held.host
        pool.audit()
        host.audit()
        for tick in self.flying:
            for row in self.flights._flights[tick][1]:
                assert set(row.pages) <= set(pool.held(row.room)), "a forward uses them"
        for room, note in self.copies.items():
            assert set(note.pages) <= set(pool.held(room)), "a rank may still read them"
            assert set(note.host_pages) <= set(host.held(room)), "a rank may still write them"
        for room, (_, pages) in self.restores.items():
            assert set(pages) <= set(pool.held(room)), "a rank may still copy into them"
        for room, pages in self.writing.items():
            assert set(pages) <= set(pool.held(room)), "prefill may still write into them"

    def finish(self) -> None:
        """Until nothing is left to happen; then nothing must be left at all."""
        for _ in range(MOST_MOVES):
            if not self.move():
                break
        role = self.role
        assert role.lengths() == (0, 0, 0)
        assert role.pool.available == role.pool.num_pages
        assert role._held.host.available == role._held.host.num_pages
        assert (len(role._held.budget), role.wake_ms()) == (0, None)
        for room, told in self.told.items():
            last_words = [note for note in told if isinstance(note, Ended | Evicted)]
            assert len(last_words) == 1, f"{room} was told {last_words}"

    def notes(self, kind: type[Note]) -> int:
        """How many of a kind there were."""
        return sum(isinstance(note, kind) for told in self.told.values() for note in told)


RNG = st.integers(0, 2**32).map(random.Random)
HISTORIES = settings(max_examples=100)


def random_prompt(rng: random.Random, number: int, tokens: int) -> tuple[int, ...]:
    """Some prompts begin alike."""
    shared = rng.choice([0, 0, 2 * SIZE])
    return tuple(9 if index < shared else 100 * number + index for index in range(tokens))


def submit_some(history: History, rng: random.Random, numbers: range, most_tokens: int) -> None:
    for number in numbers:
        tokens = rng.randint(2, most_tokens)
        prompt = random_prompt(rng, number, rng.randint(1, rng.randint(1, tokens - 1)))
        history.submit(number, prompt, tokens - len(prompt) + 1, rng.randint(-1, 1))


@HISTORIES
@given(RNG, st.integers(4, 14), st.integers(1, 4), st.sampled_from([0, 5, 1_000]), st.sampled_from([1.0, 0.8]))
def test_whatever_happens_everyone_ends_once_and_every_page_comes_back(
    rng: random.Random, pages: int, slots: int, host_pages: int, yes: float
):
    limits = Limits(page_size=SIZE, num_pages=pages, context=1_000, host_pages=host_pages)
    history = History(rng, limits, slots, yes, leaving=0.03)
    for number in range(1, 25, 4):
        submit_some(history, rng, range(number, number + 4), pages * SIZE)
        for _ in range(rng.choice([0, 10, 100])):
            history.move()
    history.finish()


@HISTORIES
@given(RNG, st.integers(4, 14), st.integers(1, 4), st.booleans())
def test_nobody_is_lost_for_lack_of_memory_while_the_host_has_room(
    rng: random.Random, pages: int, slots: int, prefix_cache: bool
):
    limits = Limits(page_size=SIZE, num_pages=pages, context=1_000, host_pages=1_000, prefix_cache=prefix_cache)
    history = History(rng, limits, slots)
    submit_some(history, rng, range(1, 17), pages * SIZE)
    history.finish()
    reasons = {note.reason for told in history.told.values() for note in told if isinstance(note, Ended)}
    assert reasons <= {Reason.STOP, Reason.LENGTH, Reason.TRANSFER_FAILED}
    assert history.notes(Retracted) == history.notes(Resumed)


@HISTORIES
@given(RNG, st.lists(st.tuples(st.integers(1, 20), st.integers(2, 30)), min_size=1, max_size=12), st.integers(1, 4))
def test_nobody_makes_room_while_everyone_fits(rng: random.Random, requests: list[tuple[int, int]], slots: int):
    """By exact accounting: the maximum of each, over all slots, whatever order they come and run in."""
    pages = sum(-(-(prompt + max_tokens - 1) // SIZE) for prompt, max_tokens in requests)
    history = History(rng, Limits(page_size=SIZE, num_pages=pages, context=1_000), slots)
    for number, (prompt, max_tokens) in enumerate(requests, start=1):
        history.submit(number, random_prompt(rng, number, prompt), max_tokens)
        for _ in range(rng.choice([0, 10])):
            history.move()
    history.finish()
    assert history.notes(Retracted) + history.notes(Evicted) == 0


def test_requests_do_make_room_in_such_histories():
    """Else the properties would say nothing about it."""
    retracted, twice, evicted = 0, 0, 0
    for seed in range(40):
        rng = random.Random(seed)
        limits = Limits(page_size=SIZE, num_pages=12, context=1_000, host_pages=6)
        history = History(rng, limits, 3)
        submit_some(history, rng, range(1, 17), 12 * SIZE)
        history.finish()
        retracted += history.notes(Retracted)
        twice += sum(count > 1 for count in history.backups.values())
        evicted += history.notes(Evicted)
    assert min(retracted, twice, evicted) > 5, (retracted, twice, evicted)
