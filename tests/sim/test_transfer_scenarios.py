"""Named failures of KV transfer and of peers, each as a run in virtual time that must end well.

The numbers are those of the scenario list. In every run no page is touched for a room that does not hold it, no
cell that is read is another one than the reference's, and at the end nothing is left on any rank.
"""

import random
from collections.abc import Callable

import msgspec
import pytest
from transfer_run import DEADLINE_MS, FEW_PAGES, LIMITS, SECOND_US, SLOW_WRITES, Run, work

from decode.admission import RETRY_MS
from decode.intake import State
from kvtransfer.breaker import Breaker
from prefill.handoff import State as Handing
from tandem.core.config import split_layers
from tandem.core.effects import Effect, Launch, Observe, Post, TellPeer
from tandem.core.events import Event, LayerRan, Written
from tandem.core.ids import LEADER, LayerId, PageId, Room, Tick
from tandem.core.messages import Cancel, Commit, Done, Evicted, Progress, Quiet, Token
from tandem.core.requests import Reason, Work, pages_for
from tandem.sim.case import LAYERS, PAIR
from tandem.sim.faults import Fault
from tandem.sim.node import Node
from tandem.sim.world import Pace
from tandem.sim.writes import Write


def effects_of(run: Run, group: str, look: Callable[[Node, Event, Effect], object]) -> None:
    """Have every effect of every rank of a group looked at, with the event it comes of."""
    for node in run.world.ranks(group):
        node.rank.on = looked_at(node, look)  # type: ignore[method-assign]


def looked_at(node: Node, look: Callable[[Node, Event, Effect], object]) -> Callable[[Event, int], list[Effect]]:
    take = node.rank.on

    def on(event: Event, now_ms: int) -> list[Effect]:
        effects = take(event, now_ms)
        for effect in effects:
            look(node, event, effect)
        return effects

    return on


def posts(run: Run, group: str = "p0") -> list[Post]:
    """Writes of a group, as they are posted."""
    seen: list[Post] = []
    effects_of(run, group, lambda node, event, effect: seen.append(effect) if isinstance(effect, Post) else None)
    return seen


def landings(run: Run, look: Callable[[Write], None]) -> None:
    """Look at every write of prefill at the moment it lands, just before."""
    for node in run.world.ranks("p0"):
        node.writes._land = looked_at_first(node.writes._land, look)  # type: ignore[method-assign]


def looked_at_first(land: Callable[[Write], bool], look: Callable[[Write], None]) -> Callable[[Write], bool]:
    def looked(write: Write) -> bool:
        look(write)
        return land(write)

    return looked


def fail_one_write(run: Run, kind: Fault) -> None:
    """The next write ends in this way, and no other one."""
    left = [kind]

    def strikes(asked: Fault, share: float) -> bool:
        if asked not in left:
            return False
        left.remove(asked)
        return True

    run.world.swarm.strikes = strikes  # type: ignore[method-assign]


def lose_quiet(run: Run, number: int) -> list[Quiet]:
    """That a request's room is quiet never arrives; those words."""
    lost: list[Quiet] = []
    peers = run.head("p0").peers
    say = peers.say

    def losing(effect: TellPeer) -> None:
        if effect.message == Quiet(work(number).room):
            lost.append(effect.message)
        else:
            say(effect)

    peers.say = losing  # type: ignore[method-assign]
    return lost


# pages


def test_s27_decode_aborts_mid_transfer_and_another_request_wants_its_pages():
    """S27: What was posted before lands later, in pages that are still its room's; then all pages come back."""
    run = Run(limits=FEW_PAGES, pace=SLOW_WRITES)
    late: list[bool] = []
    run.submit(work(1), work(2))
    run.until(lambda: run.state("d0", 1) is State.TRANSFERRING and run.head("p0").writes.posted("d0"))
    run.world.router.cancel(work(1), ("d0",))
    run.until(lambda: run.state("d0", 1) is State.QUARANTINED)
    landings(run, lambda write: late.append(run.held("d0", 1)) if write.effect.room == work(1).room else None)
    assert run.ended() == {1: Reason.CLIENT_GONE, 2: Reason.LENGTH}
    assert late
    assert all(late)


def test_s28_the_writers_last_word_is_lost():
    """S28: Its pages are kept, though another request waits, until the writer is cut off; then they are given."""
    run = Run((8,), (8,), limits=FEW_PAGES)
    lost = lose_quiet(run, 1)
    run.submit(work(1), work(2), retries=2)
    run.until(lambda: run.state("d0", 1) is State.TRANSFERRING)
    run.world.router.cancel(work(1), PAIR)
    run.until(lambda: lost)
    run.until(lambda: not run.held("d0", 1) or run.head("d0").peers.fences["p0"])
    assert run.held("d0", 1)
    assert run.state("d0", 2) is State.QUEUED
    assert run.world.clock.now_us >= 1000 * FEW_PAGES.quiesce_ms
    assert run.ended() == {1: Reason.CLIENT_GONE, 2: Reason.LENGTH}


def test_s28_the_writer_dies_mid_transfer():
    """S28: Nobody is left to say a word: what the dead ranks had posted may land, until decode has cut them off."""
    run = Run(limits=FEW_PAGES, pace=SLOW_WRITES)
    run.submit(work(1))
    run.until(lambda: run.head("p0").writes.posted("d0"))
    run.world.epochs.restart("p0", 30_000)
    run.until(lambda: run.state("d0", 1) is State.QUARANTINED)
    fences = [node.peers.fences for node in run.world.ranks("d0")]
    run.until(lambda: not run.held("d0", 1) or all(done["p0"] for done in fences))
    assert run.held("d0", 1)
    assert run.ended()[1] in (Reason.GROUP_LOST, Reason.TRANSFER_FAILED), "whoever noticed first"
    run.submit(work(2))
    assert run.ended()[2] is Reason.LENGTH


def test_s29_a_write_that_was_given_up_still_reads_its_source():
    """S29: Prefill's pages are kept, though another request waits for them, until the writer is cut off."""
    run = Run(limits=FEW_PAGES, pace=SLOW_WRITES)
    fail_one_write(run, Fault.UNSETTLED_WRITES)
    given_up, reads = unsettled(run), []
    landings(run, lambda write: reads.append(run.held("p0", 1)) if write in given_up else None)
    run.submit(work(1), work(2), retries=2)
    run.until(lambda: run.state("p0", 1) is Handing.DRAINING)
    run.until(lambda: not run.held("p0", 1) or run.world.fences)
    assert run.held("p0", 1)
    assert reads == [True]
    assert run.ended() == {1: Reason.LENGTH, 2: Reason.LENGTH}


def unsettled(run: Run) -> list[Write]:
    """Writes of prefill that may still land, though it has been told that they are over."""
    given_up: list[Write] = []
    for node in run.world.ranks("p0"):
        node.writes._told = noting_unsettled(node.writes._told, given_up)  # type: ignore[method-assign]
    return given_up


def noting_unsettled(told: Callable[[Write, Written], None], given_up: list[Write]) -> Callable[[Write, Written], None]:
    def noted(write: Write, result: Written) -> None:
        if result is Written.FAILED_UNSETTLED:
            given_up.append(write)
        told(write, result)

    return noted


# prefill ends a request


def refuse_on_prefill(run: Run) -> Reason:
    """Prompts that fit decode are too long for this prefill group."""
    for node in run.world.ranks("p0"):
        role = node.rank.scheduler.role
        role._limits = msgspec.structs.replace(run.limits, context=16)
    return Reason.TOO_LARGE


def fill_prefill(run: Run) -> Reason:
    """Prefill has as many rooms as it takes, with requests that never go to decode."""
    run.submit(work(8, 80, 1), work(9, 80, 1))
    run.within(2_000)
    return Reason.QUEUE_FULL


def client_goes(run: Run) -> Reason:
    """Only prefill hears of it, right after the request."""
    run.world.clock.after(1_000, lambda: run.world.router.cancel(work(1), ("p0",)))
    return Reason.CLIENT_GONE


@pytest.mark.parametrize("late_us", [0, 500_000], ids=["decode knows it", "decode hears of it later"])
@pytest.mark.parametrize("ending", [client_goes, fill_prefill, refuse_on_prefill])
def test_s30_prefill_ends_a_request(ending: Callable[[Run], Reason], late_us: int):
    """S30: Decode is told at once: a second after it knows the room, no page is kept for it, nor is the room itself."""
    run = Run(limits=msgspec.structs.replace(LIMITS, max_rooms=2))
    if ending is client_goes:
        run.world.router.submit(work(1), PAIR, DEADLINE_MS, {"d0": late_us})
        reason = ending(run)
    else:
        reason = ending(run)
        run.world.router.submit(work(1), PAIR, DEADLINE_MS, {"d0": late_us})
    run.within(late_us + SECOND_US)
    assert run.taken("d0") == 0
    assert not run.head("d0").rank.scheduler.role.knows(work(1).room)
    assert run.ended()[1] is reason


@pytest.mark.parametrize(
    ("long", "few"), [(work(1, prompt=100), 64), (work(1, prompt=30, max_tokens=20), 9)], ids=["context", "pages"]
)
def test_s31_what_is_too_long_is_refused_on_both_sides(long: Work, few: int):
    """S31: Also what only decode has no room for: nothing is sent in its place, and its client gets no token."""
    run = Run(limits=msgspec.structs.replace(LIMITS, num_pages=few))
    sent = posts(run)
    run.submit(long, work(2))
    assert run.ended() == {1: Reason.TOO_LARGE, 2: Reason.LENGTH}
    assert {int(post.room.rid) for post in sent} == {2}
    assert not run.client.answer(long.room).tokens


# peers


def test_s33_a_dead_prefill_group_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    """S33: The router notices late. Its requests fail, or wait in decode for their deadline; others pass them by."""
    run = Run(prefills=2)
    run.within(10_000)
    monkeypatch.setattr("tandem.sim.epochs.HANGS_UP", 0)
    monkeypatch.setattr(run.world.router.membership, "_silent_s", 4)
    run.world.epochs.restart("p1", 5 * SECOND_US)
    run.submit(work(1), to=("p1", "d0"), remaining_ms=2_000)
    run.submit(work(11))
    run.within(50_000)
    run.submit(*map(work, range(2, 6)), to=("p1", "d0"), remaining_ms=2_000)
    run.within(5_000)
    run.submit(*map(work, range(12, 16)))
    run.within(1000 * RETRY_MS - 10_000)  # before those that were refused ask again
    answers = {int(room.rid): answer.ended for room, answer in run.client.answers.items()}
    served = dict.fromkeys(range(11, 16), Reason.LENGTH)
    assert answers == {1: Reason.TRANSFER_FAILED} | dict.fromkeys(range(2, 6)) | served
    assert run.ended() == {1: Reason.TRANSFER_FAILED} | dict.fromkeys(range(2, 6), Reason.DEADLINE) | served


def test_s34_one_failed_write_bans_nobody():
    """S34: Its request is tried again between the same two groups, which have not lost each other."""
    run = Run()
    fail_one_write(run, Fault.FAILED_WRITES)
    sent = posts(run)
    run.submit(work(1), retries=1)
    run.within(20_000)
    session = run.head("d0").peers.session(("p0", LEADER))
    assert run.ended() == {1: Reason.LENGTH}
    assert {post.room.attempt for post in sent} == {1, 2}
    assert run.head("d0").peers.session(("p0", LEADER)) == session
    assert run.world.fences == 0


def test_s34_who_is_banned_is_tried_again():
    """S34: One failure leaves an edge as it is; three in a row close it for a second, then one handshake opens it."""
    breaker = Breaker()
    assert breaker.begin(0)
    breaker.tried(None, 0)
    assert breaker.wrote(False, 0)
    assert breaker.wrote(True, 0)
    assert [breaker.wrote(False, 1) for _ in range(3)] == [True, True, False]
    assert not breaker.begin(1.9)
    assert breaker.begin(2)
    breaker.tried(None, 2)
    assert breaker.wrote(False, 2)


SHAPES = [((2, 2, 3, 1), (6, 2)), ((2, 2, 2, 2), (8,)), ((8,), (2, 2, 2, 2)), ((1, 3, 4), (4, 1, 3))]


@pytest.mark.parametrize(("prefill", "decode"), SHAPES, ids=str)
def test_s36_layers_are_cut_differently_on_both_sides(prefill: tuple[int, ...], decode: tuple[int, ...]):
    """S36: Each layer goes from the rank that has it to the one that wants it, and to no other."""
    run = Run(prefill, decode)
    routes: set[tuple[int, int, int]] = set()

    def look(node: Node, event: Event, effect: Effect) -> None:
        if isinstance(effect, Post):
            routes.add((effect.layer, node.rank.place.rank, effect.rank))

    effects_of(run, "p0", look)
    run.submit(*(work(number, max_tokens=12) for number in range(1, 5)))
    assert set(run.ended().values()) == {Reason.LENGTH}
    assert routes == {(layer, owner(prefill, layer), owner(decode, layer)) for layer in range(LAYERS)}


def owner(partition: tuple[int, ...], layer: int) -> int:
    return next(rank for rank in range(len(partition)) if layer < sum(partition[: rank + 1]))


# order


@pytest.mark.parametrize("size", [1, 2, 4])
def test_s37_no_page_is_sent_before_its_layer_has_run(size: int):
    """S37: Forwards are far slower than anything else, so that whoever does not wait for them is early."""
    run = Run(split_layers(LAYERS, size), pace=Pace(layer_us=(20_000, 40_000)))
    fills: dict[tuple[Node, Room, PageId], list[Tick]] = {}
    ran: set[tuple[Node, Tick, LayerId]] = set()
    early: list[Post] = []
    sent = posts(run)

    def look(node: Node, event: Event, effect: Effect) -> None:
        if isinstance(effect, Launch):
            for row in effect.plan.rows:
                for page in row.pages[row.start // LIMITS.page_size : pages_for(row.end, LIMITS.page_size)]:
                    fills.setdefault((node, row.room, page), []).append(effect.plan.tick)
        elif isinstance(effect, Post):
            for page, _ in effect.blocks:
                ticks = fills.get((node, effect.room, page), [])
                if not ticks or any((node, tick, effect.layer) not in ran for tick in ticks):
                    early.append(effect)

    effects_of(run, "p0", look)
    for node in run.world.ranks("p0"):
        node.on = noting(node, ran)  # type: ignore[method-assign]
    run.submit(*(work(number, prompt=20 + number) for number in range(1, 6)))
    assert set(run.ended().values()) == {Reason.LENGTH}
    assert sent
    assert not early


def noting(node: Node, ran: set[tuple[Node, Tick, LayerId]]) -> Callable[[Event], None]:
    take = node.on

    def on(event: Event) -> None:
        if isinstance(event, LayerRan):
            ran.add((node, event.tick, event.layer))
        take(event)

    return on


@pytest.mark.parametrize("size", [1, 2, 4])
def test_s39_commits_come_in_any_order_and_twice(size: int):
    """S39: A rank says that all is here when it is: cell by cell the reference's, at that moment."""
    run = Run(decode=split_layers(LAYERS, size), pace=Pace(layer_us=(1_000, 4_000), write_us=(20, 20_000)))
    rng = random.Random(size)
    whole: list[Room] = []

    def look(node: Node, event: Event, effect: Effect) -> None:
        if isinstance(effect, Observe) and effect.fact.progress is Progress.SUCCESS:
            check_prompt(run, node, effect.room)
            whole.append(effect.room)

    effects_of(run, "d0", look)
    for node in run.world.ranks("d0"):
        node.on = shuffling(run, node, rng)  # type: ignore[method-assign]
    run.submit(*(work(number, prompt=20 + number) for number in range(1, 7)))
    assert set(run.ended().values()) == {Reason.LENGTH}
    assert len(whole) == 6 * size


def shuffling(run: Run, node: Node, rng: random.Random) -> Callable[[Event], None]:
    take = node.on

    def on(event: Event) -> None:
        if isinstance(event, Commit):
            for _ in range(2):
                run.world.clock.after(rng.randrange(40_000), lambda: take(event))
        else:
            take(event)

    return on


def check_prompt(run: Run, node: Node, room: Room) -> None:
    """All cells of the prompt are in this rank's pages."""
    answer = run.client.answer(room)
    assert answer.content is not None
    tokens, pages = len(answer.work.prompt), node.rank.scheduler.role._requests[room].pages
    for layer in range(node.memory.region.first_layer, node.memory.region.last_layer):
        here = b"".join(bytes(node.memory.block(LayerId(layer), page)) for page in pages)
        there = answer.content.cells[layer, :tokens].tobytes()
        assert here[: len(there)] == there, f"layer {layer} of {room}"


# ends


@pytest.mark.parametrize("wait", range(0, 30, 3))
def test_s40_an_abort_on_prefill_is_never_the_end_of_a_whole_answer(wait: int):
    """S40: Whatever has been sent by then, and whatever decode has: the client hears why it ended, not `length`."""
    run = Run(pace=SLOW_WRITES)
    sent = posts(run)
    run.submit(work(1, max_tokens=40))
    run.until(lambda: len(sent) > wait)
    assert run.state("p0", 1) in (Handing.RUNNING, Handing.SENDING)
    run.head("p0").on(Cancel(work(1).room, Reason.DEADLINE))
    assert run.ended() == {1: Reason.DEADLINE}
    assert len(run.client.answer(work(1).room).tokens) <= 1


def during_prefill(run: Run) -> bool:
    return run.state("p0", 1) is Handing.RUNNING


def during_the_transfer(run: Run) -> bool:
    return run.state("p0", 1) is Handing.SENDING and run.state("d0", 1) is State.TRANSFERRING


def during_decode(run: Run) -> bool:
    return run.state("d0", 1) is State.RUNNING


def after_the_end(run: Run) -> bool:
    return run.client.answer(work(1).room).ended is Reason.LENGTH


@pytest.mark.parametrize("moment", [during_prefill, during_the_transfer, during_decode, after_the_end])
def test_s41_the_client_leaves(moment: Callable[[Run], bool]):
    """S41: Within a second no page of it is kept on either side, and neither side computes or sends for it."""
    run = Run(pace=SLOW_WRITES)
    said = words(run)
    run.submit(work(1, max_tokens=50))
    run.until(lambda: moment(run))
    over = moment is after_the_end
    run.world.router.cancel(work(1, max_tokens=50), PAIR)
    run.within(SECOND_US)
    assert [run.taken(group) for group in PAIR] == [0, 0]
    assert all(node.compute.idle for node in run.world.nodes)
    assert not any(node.writes.posted("d0") for node in run.world.ranks("p0"))
    said.clear()
    assert run.ended() == {1: Reason.LENGTH if over else Reason.CLIENT_GONE}
    assert not said


def words(run: Run) -> list[Token | Done | Evicted]:
    """What groups tell the router."""
    said: list[Token | Done | Evicted] = []
    tell = run.world.router.to_client

    def told(node: Node, message: Token | Done | Evicted) -> None:
        said.append(message)
        tell(node, message)

    run.world.router.to_client = told  # type: ignore[method-assign]
    return said
