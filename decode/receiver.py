"""Decode's local half: votes, sends grants, counts what has landed, and has pages copied to host memory and back."""

from kvtransfer.coverage import Coverage
from kvtransfer.peers import Peers
from kvtransfer.session import ReceiveInput, ReceiveSession, ReceiveState
from tandem.core.effects import BackUp, Effect, Fence, Observe, Restore, TellPeer, Verify
from tandem.core.errors import IllegalTransition
from tandem.core.events import BackedUp, Event, Fenced, PeerLost, PeerOpened, Verified
from tandem.core.ids import LEADER, LayerId, RankId, Room
from tandem.core.inputs import FirstToken
from tandem.core.messages import Commit, Fact, Grant, Progress
from tandem.core.plan import Ask, CutOff, Emitted, Forgotten, Granted, Plan, Question, Resumed, Retracted, Returned


class KVReceiver:
    """Receives the layers [first, last) of every room that this decode rank will run."""

    def __init__(self, group: str, rank: RankId, layers: tuple[LayerId, LayerId], page_size: int) -> None:
        self._group = group
        self._rank = rank
        self._layers = layers
        self._page_size = page_size
        self._peers = Peers()
        self._sessions: dict[Room, ReceiveSession] = {}

    def answer(self, ask: Ask) -> bool:
        """This rank's vote. Prealloc reserves a session; retract and resume are about what the session has."""
        match ask.question:
            case Question.PREALLOC:
                return self._reserve(ask)
            case Question.RETRACT:
                return self._is(ask.room, ReceiveState.COMPLETE)
            case Question.RESUME:
                return self._is(ask.room, ReceiveState.SAVED)
            case _:
                raise IllegalTransition(f"{ask} is for whoever keeps the facts")

    def _reserve(self, ask: Ask) -> bool:
        """Yes if the prefill ranks that own my layers are open to me."""
        if self._peers.route(ask.peer, *self._layers) is None:
            return False
        self._sessions[ask.room] = ReceiveSession(ask.room, ask.peer)
        return True

    def _is(self, room: Room, state: ReceiveState) -> bool:
        session = self._sessions.get(room)
        return session is not None and session.state is state

    def on_plan(self, plan: Plan) -> list[Effect]:
        """Grants go out and copies are made at the commit of the vote, never before."""
        effects: list[Effect] = []
        for note in plan.notes:
            match note:
                case Emitted():  # first, as there are the most of them
                    pass
                case Granted():
                    effects += self._grant(note)
                case Retracted(room=room, pages=pages, host_pages=host_pages):
                    self._sessions[room].move(ReceiveInput.RETRACTED)
                    effects.append(BackUp(room, pages, host_pages))
                case Resumed(room=room, host_pages=host_pages, pages=pages):
                    self._sessions[room].move(ReceiveInput.RESUMED)
                    effects.append(Restore(room, host_pages, pages))
                case CutOff(peer=peer):
                    effects.append(Fence(peer))
                case Returned(room=room) | Forgotten(room=room):
                    self._sessions.pop(room, None)
                case _:
                    pass
        return effects

    def _grant(self, note: Granted) -> list[Effect]:
        session = self._sessions[note.room]
        session.move(ReceiveInput.GRANTED)
        session.coverage = Coverage(*self._layers, note.prompt_tokens, note.first_page * self._page_size)
        session.first_page, session.pages = note.first_page, note.pages
        route = self._peers.route(note.peer, *self._layers)
        if route is None:  # a peer was lost between the vote and its commit: a fact, not a reason to differ
            return [Observe(note.room, Fact(failed=True))]
        grant = Grant(self._group, note.room, self._rank, note.first_page, note.pages)
        return [TellPeer(note.peer, rank, grant) for rank in dict.fromkeys(route.values())]

    def on_event(self, event: Event) -> list[Effect]:
        """Everything local that concerns KV."""
        match event:
            case Commit():
                return self._commit(event)
            case Verified(commit=commit, intact=intact):
                return self._cover(commit) if intact else self._corrupt(commit.room)
            case Fenced(group=group):
                return [Observe(session.room, Fact(fenced=True)) for session in self._granted_by(group)]
            case BackedUp(room=room):
                return self._backed_up(room)
            case FirstToken(room=room):
                if room in self._sessions:
                    self._sessions[room].told = True
                return []
            case PeerOpened():
                self._peers.on_event(event)
                return []
            case PeerLost(group=group, rank=rank):
                self._peers.on_event(event)
                waiting = [one for one in self._granted_by(group) if self._waits(one, rank)]
                return [Observe(session.room, Fact(failed=True)) for session in waiting]
            case _:
                return []

    def _waits(self, session: ReceiveSession, rank: RankId) -> bool:
        """Whether a rank that is lost may have owed something: KV, or the first token, which rank 0 tells rank 0."""
        first = rank == self._rank == LEADER and session.state is ReceiveState.COMPLETE and not session.told
        return first or session.state is ReceiveState.OPEN

    def _granted_by(self, group: str) -> list[ReceiveSession]:
        """Rooms whose pages this group was told."""
        sessions = self._sessions.values()
        return [one for one in sessions if one.peer == group and one.state is not ReceiveState.RESERVED]

    def _commit(self, commit: Commit) -> list[Effect]:
        """A commit for a room that is not here any more says nothing; one that cannot be right ends its room.

        It counts when the blocks that it has digests of are what was sent.
        """
        session = self._open(commit.room)
        if session is None:
            return []
        checks = session.placed(commit.checks)
        if not self._layers[0] <= commit.layer < self._layers[1] or checks is None:
            return [Observe(commit.room, Fact(failed=True))]
        return [Verify(commit, checks)] if checks else self._cover(commit)

    def _open(self, room: Room) -> ReceiveSession | None:
        session = self._sessions.get(room)
        return session if session is not None and session.state is ReceiveState.OPEN else None

    def _corrupt(self, room: Room) -> list[Effect]:
        """Other bytes are here than were sent. Once the room has gone, others write there."""
        return [] if self._open(room) is None else [Observe(room, Fact(corrupt=True))]

    def _cover(self, commit: Commit) -> list[Effect]:
        session = self._open(commit.room)
        if session is None or session.coverage is None:
            return []
        session.coverage.add(commit.layer, commit.first, commit.last)
        if not session.coverage.complete:
            return []
        session.move(ReceiveInput.COVERED)
        return [Observe(commit.room, Fact(Progress.SUCCESS))]

    def _backed_up(self, room: Room) -> list[Effect]:
        session = self._sessions[room]  # it is kept until all ranks have said this
        session.move(ReceiveInput.BACKED_UP)
        session.backups += 1
        return [Observe(room, Fact(Progress.SUCCESS, backups=session.backups))]

    def open_rooms(self) -> int:
        """Sessions, for people and for tests that want none left."""
        return len(self._sessions)
