"""What happened to each room on this rank, and when: for people only, nothing is decided by it."""

from collections.abc import Callable
from itertools import islice
from typing import Any

from consensus.leader import conclusions
from tandem.core.config import RoleName
from tandem.core.effects import Effect, Observe, Post, TellPeer
from tandem.core.events import BackedUp, Combined, Event, LayerRan, Moved, Ran, Started, Verified, Written
from tandem.core.ids import RequestId, Room, Tick
from tandem.core.inputs import FirstToken, Frame, Kind, Submit
from tandem.core.messages import BallotBack, Baton, Commit, Grant, Progress, Quiet, Return
from tandem.core.plan import (
    Ask,
    CutOff,
    Emitted,
    Ended,
    Evicted,
    Forgotten,
    Granted,
    Note,
    Plan,
    Question,
    Resumed,
    Retracted,
    Returned,
    RoomNote,
    Row,
)
from tandem.runtime.ends import Ends
from tandem.runtime.history import Chunk, Entry, Landing, Mark, Outline, Track, What, Write
from tandem.runtime.tally import PEER, WRITES, Tally

MAX_ROOMS = 1024
"""Rooms that are remembered; the oldest goes for one more."""
HALF = 128
"""Entries kept of each end of a room's timeline: layers x chunks of all but the longest prompts."""
NEWEST = 256
"""Rooms in an overview: the tick loop stands still while it is made."""

STATES = frozenset(
    {
        What.SUBMITTED,
        What.GRANTED,
        What.BOOTSTRAPPED,
        What.COMPUTING,
        What.FIRST_TOKEN,
        What.TRANSFERRED,
        What.DECODING,
        What.RETRACTED,
        What.RESUMED,
        What.EVICTED,
        What.ENDED,
        What.GONE,
    }
)
"""What a room is said to be from then on."""
VERDICTS = {
    Kind.COMPILED: What.COMPILED,
    Kind.BOOTSTRAPPED: What.BOOTSTRAPPED,
    Kind.TRANSFERRED: What.TRANSFERRED,
    Kind.FAILED: What.FAILED,
    Kind.CORRUPTED: What.CORRUPTED,
    Kind.QUIET: What.QUIET,
    Kind.FENCED: What.FENCED,
}
NOTES: dict[type[Note], What] = {
    Granted: What.GRANTED,
    Returned: What.REFUSED,
    Retracted: What.RETRACTED,
    Resumed: What.RESUMED,
    Evicted: What.EVICTED,
    Ended: What.ENDED,
    Forgotten: What.GONE,
}
VOTES = (Question.PREALLOC, Question.RETRACT, Question.RESUME)
"""Questions worth a line: polls are asked again and again."""

Handler = Callable[[int, Any], None]


class _Story:
    """One room."""

    __slots__ = ("changed_us", "entries", "failure", "outline")

    def __init__(self, room: Room) -> None:
        self.changed_us = 0  # its outline
        self.outline = Outline(f"{room.rid:016x}", room.attempt)
        self.entries: Ends[Entry] = Ends(HALF)
        self.failure = ""  # what this rank has seen fail

    def mark(self, now_us: int, what: What, detail: str = "") -> None:
        self.changed_us = now_us
        self.entries.add(Mark(now_us, what, detail))
        self.outline.marks.setdefault(what, now_us)
        if what in STATES:
            self.outline.state = what


class Timeline:
    """Pure: time is an argument, microseconds since 1970. Told of everything that goes by a rank, for one thread.

    Only rooms cost anything: a tick of decode leaves nothing behind but in the rooms that begin or end with it.
    """

    def __init__(
        self, role: RoleName, kinds: tuple[Kind, ...], block_bytes: int, tally: Tally, most_rooms: int = MAX_ROOMS
    ) -> None:
        """`kinds` are the verdicts of the role, `block_bytes` one page of one layer. The tally counts what goes by."""
        self.role = role
        self.tally = tally
        self._decodes = role is RoleName.DECODE
        self._kinds = kinds
        self._block_bytes = block_bytes
        self._most_rooms = most_rooms
        self._rooms: dict[Room, _Story] = {}
        self._computing: dict[Room, _Story] = {}  # whose last chunk has not been planned
        self._chunks: dict[Tick, list[Chunk]] = {}  # of ticks that have not run
        self._writes: dict[int, tuple[_Story, Write]] = {}  # by ticket, until it is over
        self._over: tuple[_Story, Write] | None = None  # the write that the rank is being told of
        self._computed_us = 0  # the layer whose posts come now
        self._events: dict[type[Event], Handler] = {
            Submit: self._submitted,
            FirstToken: self._first_token,
            Quiet: lambda now_us, quiet: self._verdict(now_us, quiet.room, What.QUIET),
            Combined: self._combined,
            Baton: lambda now_us, baton: self._frame(now_us, baton.frame),
            Grant: self._grant,
            Commit: self._landed,
            Moved: self._moved,
            Return: lambda now_us, message: tally.on_return(now_us, message.tick),
            BallotBack: lambda now_us, message: tally.on_outcome(now_us, message.tick),
            Verified: lambda now_us, verified: tally.on_verified(verified),
        }

    def __len__(self) -> int:
        """Rooms remembered."""
        return len(self._rooms)

    # what goes by

    def on_event(self, now_us: int, event: Event) -> None:
        """The rank is about to take an event."""
        handler = self._events.get(type(event))
        if handler is not None:
            handler(now_us, event)

    def on_effect(self, now_us: int, effect: Effect) -> None:
        """The courier wants something done about KV."""
        match effect:
            case Post():
                self._post(now_us, effect)
            case TellPeer(message=Commit() as commit):
                self._committed(now_us, commit)
            case Observe(room=room, fact=fact) if (story := self._rooms.get(room)) is not None:
                done = What.LANDED if self._decodes else What.SENT
                told = {
                    What.READY: fact.progress == Progress.WAITING_FOR_INPUT,
                    done: fact.progress == Progress.SUCCESS and not fact.backups,
                    What.FAILED_HERE: fact.failed,
                    What.QUIET_HERE: fact.quiet,
                }
                for what in (what for what, true in told.items() if true):
                    story.mark(now_us, what)
                if fact.failed:
                    story.failure = story.failure or PEER
            case _:
                pass

    def on_vote(self, now_us: int, ask: Ask, yes: bool) -> None:
        """This rank has voted."""
        self._mark(now_us, ask.room, What.VOTED, f"{ask.question.value} {'yes' if yes else 'no'}")

    def on_plan(self, now_us: int, plan: Plan) -> None:
        """A tick has been stepped."""
        self.tally.on_plan(now_us, plan)
        self._notes(now_us, plan)
        if self._computing and plan.rows:
            self._plan_chunks(now_us, plan)
        for ask in plan.asks:
            if ask.question in VOTES:
                self._mark(now_us, ask.room, What.ASKED, ask.question.value)

    def on_engine(self, at_us: int, event: Started | LayerRan | Ran | BackedUp) -> None:
        """The engine's thread said so, at its time; the rank hears of it next."""
        match event:
            case LayerRan():
                self._computed_us = at_us
            case Started(tick=tick):
                self.tally.on_engine(at_us, event)
                for chunk in self._chunks.get(tick, ()):
                    chunk.started_us = at_us
            case Ran(tick=tick):
                self.tally.on_engine(at_us, event)
                for chunk in self._chunks.pop(tick, ()):
                    chunk.ran_us = at_us
            case BackedUp():
                self._mark(at_us, event.room, What.BACKED_UP)

    def on_written(self, ticket: int, taken_us: int, begun_us: int, ended_us: int) -> None:
        """The worker's times of a write that is over; the rank hears of it next."""
        _, write = self._writes[ticket]
        write.taken_us, write.begun_us, write.ended_us = taken_us, begun_us, ended_us

    # what is told

    def outlines(self, since_us: int = 0) -> list[Outline]:
        """The newest rooms of those that have changed since then, newest first."""
        changed = (story.outline for story in reversed(self._rooms.values()) if story.changed_us >= since_us)
        return list(islice(changed, NEWEST))

    def tracks(self, rid: RequestId) -> list[Track]:
        """All attempts of a request, oldest first; none if it is not remembered."""
        stories = [story for room, story in self._rooms.items() if room.rid == rid]
        return [Track(story.outline, story.entries.items(), story.entries.dropped) for story in stories]

    # rooms

    def _story(self, room: Room) -> _Story:
        """A room's, from now on."""
        story = self._rooms.get(room)
        if story is None:
            story = self._rooms[room] = _Story(room)
            if len(self._rooms) > self._most_rooms:
                oldest = next(iter(self._rooms))
                del self._rooms[oldest]
                self._computing.pop(oldest, None)
        return story

    def _mark(self, now_us: int, room: Room, what: What, detail: str = "") -> None:
        story = self._rooms.get(room)
        if story is not None:
            story.mark(now_us, what, detail)

    def _verdict(self, now_us: int, room: Room, what: What) -> None:
        """Rank 0 may hear a verdict again, from facts that have only grown."""
        story = self._rooms.get(room)
        if story is not None and what not in story.outline.marks:
            story.mark(now_us, what)
            if what is What.BOOTSTRAPPED:
                self.tally.on_bootstrapped(now_us, story.outline)

    # events

    def _submitted(self, now_us: int, submit: Submit) -> None:
        work = submit.work
        story = self._story(work.room)
        if What.SUBMITTED in story.outline.marks:
            return
        story.outline.peer, story.outline.prompt_tokens = work.peer, len(work.prompt)
        story.mark(now_us, What.SUBMITTED)
        if not self._decodes:
            self._computing[work.room] = story

    def _first_token(self, now_us: int, first: FirstToken) -> None:
        if self._decodes:
            self._verdict(now_us, first.room, What.FIRST_TOKEN)

    def _frame(self, now_us: int, frame: Frame) -> None:
        """On all ranks but 0, which hears the same as events."""
        for outcome in frame.ballots:
            self.tally.on_outcome(now_us, outcome.tick)
        for arrival in frame.arrivals:
            if isinstance(arrival, Submit):
                self._submitted(now_us, arrival)
            elif isinstance(arrival, FirstToken):
                self._first_token(now_us, arrival)
        for verdict in frame.verdicts:
            if verdict.kind in VERDICTS:
                self._verdict(now_us, verdict.room, VERDICTS[verdict.kind])

    def _combined(self, now_us: int, combined: Combined) -> None:
        for verdict in conclusions(combined.room, combined.fact) if combined.fact is not None else ():
            if verdict.kind in self._kinds and verdict.kind in VERDICTS:
                self._verdict(now_us, verdict.room, VERDICTS[verdict.kind])

    def _grant(self, now_us: int, grant: Grant) -> None:
        """It may come before the room does."""
        self._story(grant.room).mark(now_us, What.GRANT, f"{grant.group}.{grant.rank}")

    # plans

    def _notes(self, now_us: int, plan: Plan) -> None:
        """Tokens are most of the notes, and all but the first two say nothing new."""
        last: Emitted | None = None
        for note in plan.notes:
            if type(note) is Emitted:
                last = note
                if note.index < 2:
                    self._emitted(now_us, note)
            elif not isinstance(note, CutOff) and (what := NOTES.get(type(note))) is not None:
                story = self._rooms.get(note.room)
                self._counted(now_us, story, note)
                if story is not None:
                    self._noted(now_us, story, note, what)
                    if last is not None and last.room == note.room and what is What.ENDED:
                        story.outline.tokens = last.index + 1

    def _counted(self, now_us: int, story: _Story | None, note: RoomNote) -> None:
        """Before it is noted: what counts is how far the room had come."""
        match note:
            case Ended():
                self.tally.on_ended(note, *((story.outline, story.failure) if story is not None else (None, "")))
            case Granted() if story is not None:
                self.tally.on_granted(now_us, story.outline, note)
            case Retracted() | Evicted():
                self.tally.on_made_room()
            case _:
                pass

    def _noted(self, now_us: int, story: _Story, note: RoomNote, what: What) -> None:
        if isinstance(note, Ended):
            story.outline.reason = note.reason.value
            story.mark(now_us, what, note.reason.value)
        else:
            story.mark(now_us, what)
        if what in (What.ENDED, What.GONE):
            self._computing.pop(note.room, None)

    def _emitted(self, now_us: int, note: Emitted) -> None:
        if note.index == 1:
            self._mark(now_us, note.room, What.SECOND_TOKEN)
            return
        self._mark(now_us, note.room, What.DECODING if self._decodes else What.FIRST_TOKEN)
        if not self._decodes:
            self.tally.on_first_token(note.cached)
        elif (story := self._rooms.get(note.room)) is not None:
            self.tally.on_joined(now_us, story.outline)

    def _plan_chunks(self, now_us: int, plan: Plan) -> None:
        planned = []
        for row in plan.rows:
            story = self._computing.get(row.room)
            if story is not None:
                planned.append(self._plan_chunk(now_us, story, plan.tick, row))
        if planned:
            self._chunks[plan.tick] = planned

    def _plan_chunk(self, now_us: int, story: _Story, tick: Tick, row: Row) -> Chunk:
        if What.COMPUTING not in story.outline.marks:
            story.mark(now_us, What.COMPUTING)
        chunk = Chunk(now_us, tick, row.start, row.end)
        story.entries.add(chunk)
        if row.samples:
            del self._computing[row.room]
        return chunk

    # KV on its way

    def _post(self, now_us: int, post: Post) -> None:
        write = Write(now_us, post.layer, f"{post.peer}.{post.rank}", len(post.blocks), self._computed_us)
        story = self._rooms.get(post.room)
        if story is None:  # its story was dropped for newer ones: nobody will ask
            story = _Story(post.room)
        story.entries.add(write)
        self._writes[post.ticket] = story, write

    def _moved(self, now_us: int, moved: Moved) -> None:
        self._over = story, write = self._writes.pop(moved.ticket)
        write.result = moved.result.value
        if moved.result is not Written.OK:
            story.failure = WRITES[moved.result]
            story.mark(now_us, What.FAILED_HERE, f"layer {write.layer}: {write.result}")

    def _committed(self, now_us: int, commit: Commit) -> None:
        """Comes of the Moved before it."""
        assert self._over is not None, f"{commit} comes of no write"
        story, write = self._over
        write.committed_us, write.first, write.last = now_us, commit.first, commit.last
        story.changed_us = now_us
        outline = story.outline
        outline.layers += commit.last >= outline.prompt_tokens
        outline.writes += 1
        outline.bytes += write.pages * self._block_bytes
        outline.queue_us += write.taken_us - write.computed_us
        outline.post_us += write.begun_us - write.taken_us
        outline.wire_us += write.ended_us - write.begun_us
        outline.commit_us += now_us - write.ended_us
        self.tally.on_committed(write, write.pages * self._block_bytes)

    def _landed(self, now_us: int, commit: Commit) -> None:
        story = self._rooms.get(commit.room)
        if story is not None:
            story.changed_us = now_us
            story.entries.add(Landing(now_us, commit.layer, commit.first, commit.last))
            story.outline.layers += commit.last >= story.outline.prompt_tokens
