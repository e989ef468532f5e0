"""What rank 0 does besides being a rank: it gathers inputs, opens ticks, checks returns and speaks for the group."""

from consensus.leader import Leader, conclusions
from consensus.ring import unanimous
from tandem.core import messages
from tandem.core.effects import Effect, TellPeer, TellRouter
from tandem.core.errors import Divergence
from tandem.core.events import Combined, Compiled, Event, PeerOpened, Ran, Started
from tandem.core.ids import LEADER, Room, Slot, Tick
from tandem.core.inputs import Abort, Control, FirstToken, Frame, Harvest, Kind, Knobs, Outcome, Submit, Verdict
from tandem.core.messages import Cancel, Cancelled, Done, Fact, Quiet, Return, Token
from tandem.core.plan import (
    Emitted,
    Ended,
    Evicted,
    Forgotten,
    Granted,
    HandedOff,
    Note,
    Opened,
    Plan,
    Settled,
    ToldPeer,
)
from tandem.core.scheduler import Scheduler
from tandem.core.tuning import ChunkTuner
from tandem.core.untold import Untold


class Head:
    """Only rank 0 has one. It reads the scheduler and never changes it: what it gathers goes into the next frame."""

    def __init__(self, group: str, scheduler: Scheduler, tuner: ChunkTuner | None) -> None:
        self._group = group
        self._scheduler = scheduler
        self._tuner = tuner
        self._leader = Leader(scheduler.role.kinds)
        self._facts: dict[Room, Fact] = {}  # the group's facts, also of rooms that are not here yet
        self._digests: dict[Tick, int] = {}  # of ticks whose return is out, oldest first
        self._met: dict[str, int] = {}  # by group, the incarnation of its rank 0 that was met last
        self._granted: dict[Room, tuple[str, int | None]] = {}  # to which of these a room's pages were granted
        self.untold = Untold()
        self._unstarted: Tick | None = None  # launched, but this stage has not begun it
        self._slot = Slot(0)

    def gather(self, event: Event, now_ms: int) -> None:
        """What is said to the group, and what its facts entail."""
        match event:
            case FirstToken():
                self._first_token(event)
            case Submit() | Control() | Knobs():
                self._leader.arrive(event)
            case Cancel(room=room, reason=reason):
                self._leader.arrive(Abort(room, reason))
            case Cancelled(group=group, room=room, reason=reason):
                self._leader.arrive(Abort(room, reason, group))
            case Quiet(room=room):
                if self._scheduler.role.knows(room) and self._can_vouch(room):
                    self._leader.conclude(Verdict(room, Kind.QUIET))
            case PeerOpened(hello=hello) if hello.rank == LEADER:
                self._met[hello.group] = hello.incarnation
            case Combined(room=room, fact=fact):
                self._combined(room, fact)
            case Compiled(room=room, ok=ok):
                if self._scheduler.role.knows(room):
                    self._leader.conclude(Verdict(room, Kind.COMPILED if ok else Kind.BAD_GRAMMAR))
            case Started() | Ran() if self._tuner is not None:
                knobs = self._tuner.on(event, now_ms)
                if knobs is not None:
                    self._leader.arrive(knobs)
            case _:
                pass

    def _first_token(self, first: FirstToken) -> None:
        """The frame has all but the log-probabilities."""
        if first.logprobs is not None:
            if self._scheduler.role.knows(first.room):
                self.untold.first(first.room, first.logprobs)
            first = FirstToken(first.room, first.token, cached=first.cached)
        self._leader.arrive(first)

    def _can_vouch(self, room: Room) -> bool:
        """Whether the peer is still the incarnation that the room's pages were granted to.

        The next one knows of no writes. Those that the dead one had posted may still land, until a fence.
        """
        if room not in self._granted:
            return True
        group, incarnation = self._granted[room]
        return self._met.get(group) == incarnation

    def _combined(self, room: Room, fact: Fact | None) -> None:
        """Conclude at once if the room is here, else when it comes."""
        if fact is None:
            self._facts.pop(room, None)
            return
        self._facts[room] = fact
        if self._scheduler.role.knows(room):
            for verdict in conclusions(room, fact):
                self._leader.conclude(verdict)

    # opening ticks

    def open(self, now_ms: int) -> tuple[Frame, int | None] | None:
        """The next frame and its fresh ballot, or None while there is nothing to do.

        A tick is opened only when this rank's own stage has begun the one before: newcomers join as late as possible.
        """
        if not self.may_tick:
            return None
        scheduler, leader = self._scheduler, self._leader
        slot, can_run = scheduler.role.next_slot(self._slot, scheduler.flights, leader.returned)
        tick = Tick(scheduler.tick + 1)
        due = scheduler.wake_ms is not None and scheduler.wake_ms <= now_ms
        questions = len(scheduler.votes.on_baton(tick))
        can_run = can_run and not scheduler.controls.paused
        if not (can_run or due or questions or leader.waiting):
            return None
        if slot >= 0:
            self._slot = slot
        return leader.take(tick, slot, now_ms), unanimous(questions) if questions else None

    @property
    def may_tick(self) -> bool:
        """Whether this stage has begun all that was launched."""
        return self._unstarted is None

    def launched(self, plan: Plan) -> None:
        """A plan with rows is on its way: its return is expected."""
        self._digests[plan.tick] = plan.digest
        if self._tuner is not None:
            self._tuner.launched(plan)
        self._unstarted = plan.tick

    def started(self, tick: Tick) -> None:
        """This stage has begun a tick."""
        if self._unstarted is not None and tick >= self._unstarted:
            self._unstarted = None

    # what comes back

    def returned(self, message: Return) -> None:
        """Digests are compared before a harvest enters a frame. Raises Divergence."""
        expected = next(iter(self._digests.items()), None)
        if expected != (message.tick, message.digest):
            raise Divergence(f"return of (tick, digest) {(message.tick, message.digest)}, rank 0 expects {expected}")
        del self._digests[message.tick]
        if message.logprobs:
            self.untold.drawn(message.tokens, message.logprobs, self._scheduler.role.knows)
        self._leader.harvest(Harvest(message.tick, message.tokens))

    def balloted(self, tick: Tick, yes: int) -> None:
        """A vote is decided."""
        self._leader.ballot(Outcome(tick, yes))

    def awaiting(self) -> str | None:
        """The oldest return that is out, or else the oldest ballot."""
        if self._digests:
            return f"return({next(iter(self._digests))})"
        ballot = self._scheduler.votes.oldest()
        return None if ballot is None else f"ballot({ballot})"

    @property
    def drained(self) -> bool:
        """The group takes nothing new, and has finished all that it had."""
        scheduler = self._scheduler
        return scheduler.controls.draining and scheduler.role.lengths()[0] == 0

    # what the plan says to others

    def speak(self, note: Note) -> list[Effect]:
        """One note of a plan, as a message to a router or to the peer group's rank 0."""
        match note:
            case Emitted(room=room, index=index, token=token, cached=cached):  # first, as there are the most of them
                logprobs = self.untold.take(room, index, token) if self.untold else None
                return [TellRouter(Token(room, index, token, logprobs, cached))]
            case Opened(room=room):
                self._combined(room, self._facts.get(room))
            case Ended(room=room, reason=reason):
                return [TellRouter(Done(room, reason))]
            case Evicted(room=room):
                return [TellRouter(messages.Evicted(room))]
            case Granted(room=room, peer=peer):
                self._granted[room] = peer, self._met.get(peer)
            case HandedOff(room=room, peer=peer, token=token, cached=cached):
                return [TellPeer(peer, LEADER, FirstToken(room, token, self.untold.of_first(room), cached))]
            case ToldPeer(room=room, peer=peer, reason=reason):
                return [TellPeer(peer, LEADER, Cancelled(self._group, room, reason))]
            case Settled(room=room, peer=peer):
                return [TellPeer(peer, LEADER, Quiet(room))]
            case Forgotten(room=room):
                self._leader.forget(room)
                self._granted.pop(room, None)
                self.untold.forget(room)
            case _:
                pass  # for the couriers
        return []
