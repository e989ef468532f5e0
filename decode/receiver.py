"""Decode's local half: votes on prealloc, sends grants, counts what has landed."""

from kvtransfer.coverage import Coverage
from kvtransfer.peers import Peers
from kvtransfer.session import ReceiveInput, ReceiveSession, ReceiveState
from tandem.core.effects import Effect, Observe, TellPeer
from tandem.core.events import Event, PeerLost, PeerOpened
from tandem.core.ids import LayerId, RankId, Room
from tandem.core.messages import Commit, Fact, Grant, Progress
from tandem.core.plan import Ask, Forgotten, Granted, Plan, Returned


class KVReceiver:
    """Receives the layers [first, last) of every room that this decode rank will run."""

    def __init__(self, rank: RankId, layers: tuple[LayerId, LayerId]) -> None:
        self._rank = rank
        self._layers = layers
        self._peers = Peers()
        self._sessions: dict[Room, ReceiveSession] = {}

    def answer(self, ask: Ask) -> bool:
        """Prealloc: yes if the prefill ranks that own my layers are open to me. Reserves the session."""
        if self._peers.route(ask.peer, *self._layers) is None:
            return False
        self._sessions[ask.room] = ReceiveSession(ask.room, ask.peer)
        return True

    def on_plan(self, plan: Plan) -> list[Effect]:
        """Grants go out at the commit of the vote, never before."""
        effects: list[Effect] = []
        for note in plan.notes:
            match note:
                case Granted():
                    effects += self._grant(note)
                case Returned(room=room) | Forgotten(room=room):
                    self._sessions.pop(room, None)
                case _:
                    pass
        return effects

    def _grant(self, note: Granted) -> list[Effect]:
        session = self._sessions[note.room]
        session.move(ReceiveInput.GRANTED)
        session.coverage = Coverage(*self._layers, note.prompt_tokens)
        route = self._peers.route(note.peer, *self._layers)
        if route is None:  # a peer was lost between the vote and its commit: a fact, not a reason to differ
            return [Observe(note.room, Fact(failed=True))]
        grant = Grant(note.room, self._rank, note.pages)
        return [TellPeer(note.peer, rank, grant) for rank in dict.fromkeys(route.values())]

    def on_event(self, event: Event) -> list[Effect]:
        """Everything local that concerns KV."""
        match event:
            case Commit():
                return self._commit(event)
            case PeerOpened():
                self._peers.on_event(event)
                return []
            case PeerLost(group=group):
                self._peers.on_event(event)
                waiting = [s for s in self._sessions.values() if s.peer == group and s.state is ReceiveState.OPEN]
                return [Observe(session.room, Fact(failed=True)) for session in waiting]
            case _:
                return []

    def _commit(self, commit: Commit) -> list[Effect]:
        """A commit for a room that is not here any more says nothing; one for a foreign layer ends its room."""
        session = self._sessions.get(commit.room)
        if session is None or session.coverage is None or session.state is not ReceiveState.OPEN:
            return []
        if not self._layers[0] <= commit.layer < self._layers[1]:
            return [Observe(commit.room, Fact(failed=True))]
        session.coverage.add(commit.layer, commit.first, commit.last)
        if not session.coverage.complete:
            return []
        session.move(ReceiveInput.COVERED)
        return [Observe(commit.room, Fact(Progress.SUCCESS))]

    def open_rooms(self) -> int:
        """Sessions, for people and for tests that want none left."""
        return len(self._sessions)
