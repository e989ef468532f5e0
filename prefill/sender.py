"""Prefill's local half: computed layers become posted writes, ended writes become commits, drained rooms say quiet."""

from typing import NamedTuple

import msgspec

from kvtransfer.peers import Peers
from kvtransfer.session import Instance, SendInput, SendSession, SendState
from tandem.core.effects import Drop, Effect, Fence, Observe, Post, TellPeer
from tandem.core.errors import IllegalTransition
from tandem.core.events import Event, Fenced, LayerRan, Moved, PeerLost, PeerOpened, Ran, Written
from tandem.core.ids import LayerId, PageId, RankId, Room, Tick
from tandem.core.messages import Commit, Fact, Grant, Hello, Progress
from tandem.core.plan import Ask, CutOff, Forgotten, Opened, Plan, Row, Stopped
from tandem.core.recent import Recent
from tandem.core.requests import pages_for

SCATTER = 7919
"""Layers sample different pages."""
MAX_EARLY = 4096
"""Rooms with grants but no Submit yet; the oldest is dropped for one more."""


class Chunk(NamedTuple):
    """The pages of one room that can be sent once a tick has been computed, and not before."""

    room: Room
    first_page: int  # logical index in the prompt
    pages: tuple[PageId, ...]
    last: int  # tokens of the prompt up to the end of these pages

    def starting_at(self, page: int) -> "Chunk":
        """What is left of it without the pages of the prompt before `page`."""
        skipped = min(max(page - self.first_page, 0), len(self.pages))
        return Chunk(self.room, self.first_page + skipped, self.pages[skipped:], self.last)


class Write(NamedTuple):
    """A posted write, to be committed when it has ended well."""

    session: SendSession
    peer: str
    rank: RankId
    instance: Instance  # of the rank
    commit: Commit
    checked: tuple[int, ...]  # pages of the prompt whose digests come with its end


def completed_pages(row: Row, first: int, page_size: int) -> Chunk:
    """Pages from the `first` on that are full after this row; the prompt's last page counts as full.

    The first row of a room that shares a cached prefix begins behind it, and completes its pages as well. They may be
    read after this row's own producer event of a layer: a rank runs its ticks in order, so the event of the row that
    wrote them, whoever's it was, has come before.
    """
    last = len(row.pages) if row.samples else row.end // page_size
    return Chunk(row.room, first, row.pages[first:last], min(last * page_size, row.end))


def sampled(chunk: Chunk, layer: LayerId, sample: int) -> tuple[int, ...]:
    """The pages of the prompt whose blocks of this layer are compared at both ends: one of `sample`, scattered."""
    if not sample:
        return ()
    first = chunk.room.rid + SCATTER * layer
    pages = range(chunk.first_page, chunk.first_page + len(chunk.pages))
    return tuple(page for page in pages if not (first + page) % sample)


def covers(grant: Grant, pages: int) -> bool:
    """Whether it takes a prompt of so many pages from some page to its last one, which is never cached at the peer."""
    return 0 <= grant.first_page < pages == grant.first_page + len(grant.pages)


class KVSender:
    """Sends the layers [first, last) of every room that this prefill rank computes."""

    def __init__(self, layers: tuple[LayerId, LayerId], page_size: int, checksum_sample: int) -> None:
        self._layers = layers
        self._page_size = page_size
        self._sample = checksum_sample
        self._peers = Peers()
        self._sessions: dict[Room, SendSession] = {}
        self._chunks: dict[Tick, list[Chunk]] = {}
        self._writes: dict[int, Write] = {}
        self._tickets = 0
        self._ended = Recent()
        self._spoiled = Recent()  # rooms that were not open when one of their grants was lost

    def on_plan(self, plan: Plan) -> list[Effect]:
        """Rooms open, rows launch, aborted rooms stop, ended rooms are dropped, in this order."""
        effects: list[Effect] = []
        for note in plan.notes:
            if isinstance(note, Opened):
                effects += self._open(note)
        for row in plan.rows:
            self._launch(plan.tick, row)
        for note in plan.notes:
            if isinstance(note, Stopped) and (session := self._sessions.get(note.room)):
                session.move(SendInput.STOPPED)
                effects += [Drop(note.room)] if session.posted else self._settle(session)
            elif isinstance(note, CutOff):
                effects.append(Fence(note.peer))
            elif isinstance(note, Forgotten):
                self._forget(note.room)
        return effects

    def answer(self, ask: Ask) -> bool:
        """Prefill is asked nothing."""
        raise IllegalTransition(f"prefill was asked {ask}")

    def on_event(self, event: Event) -> list[Effect]:
        """Everything local that concerns KV."""
        match event:
            case Grant():
                return self._grant(event)
            case LayerRan(tick=tick, layer=layer):
                return [effect for chunk in self._chunks.get(tick, ()) for effect in self._post(chunk, layer)]
            case Ran(tick=tick):
                return self._ran(tick)
            case Moved():
                return self._moved(self._writes.pop(event.ticket), event)
            case PeerOpened() | PeerLost():
                self._peers.on_event(event)
                return self._revisit(event)
            case Fenced(group=group):
                return [effect for session in self._sessions.values() for effect in self._fenced(session, group)]
            case _:
                return []

    def _session(self, room: Room) -> SendSession:
        return self._sessions.setdefault(room, SendSession(room))

    def _open(self, note: Opened) -> list[Effect]:
        session = self._session(note.room)
        session.opened, session.peer = True, note.peer
        session.pages = pages_for(note.prompt_tokens, self._page_size)
        return self._fail(session) if note.room in self._spoiled else self._bootstrap(session)

    def _grant(self, grant: Grant) -> list[Effect]:
        """A grant may come before the room does, but not after it has gone."""
        if grant.room in self._ended:
            return []
        session = self._session(grant.room)
        session.grants[grant.group, grant.rank] = grant
        self._bound_early()
        return self._bootstrap(session)

    def _bound_early(self) -> None:
        """Rooms that only grants speak of: their Submit comes, or decode cancels them, or decode has died."""
        early = [session.room for session in self._sessions.values() if not session.opened]
        if len(early) > MAX_EARLY:
            self._forget(early[0])

    def _bootstrap(self, session: SendSession) -> list[Effect]:
        """Ready once every decode rank that owns one of our layers has granted; at once if nobody takes over."""
        if session.state is not SendState.BOOTSTRAPPING or session.failed or not session.opened:
            return []
        route = self._peers.route(session.peer, *self._layers) if session.peer else {}
        if route is None or any((session.peer, rank) not in session.grants for rank in route.values()):
            return []
        session.route = {layer: session.grants[session.peer, rank] for layer, rank in route.items() if session.peer}
        if not all(covers(grant, session.pages) for grant in session.route.values()):
            return self._fail(session)
        session.move(SendInput.GRANTED)
        return [Observe(session.room, Fact(Progress.WAITING_FOR_INPUT))]

    def _revisit(self, event: PeerOpened | PeerLost) -> list[Effect]:
        if isinstance(event, PeerOpened):
            return [effect for session in self._sessions.values() for effect in self._meet(session, event.hello)]
        effects = [effect for session in self._sessions.values() for effect in self._lose(session, event)]
        for session in [one for one in self._sessions.values() if not (one.opened or one.grants)]:
            del self._sessions[session.room]
        return effects

    def _meet(self, session: SendSession, hello: Hello) -> list[Effect]:
        """A room may have waited for this rank, to be granted or to be a new instance: nothing lands in the old one."""
        peer = hello.group, hello.rank
        if session.unsettled.get(peer, hello.instance) != hello.instance:
            del session.unsettled[peer]
        return self._bootstrap(session) + self._settle(session)

    def _fenced(self, session: SendSession, group: str) -> list[Effect]:
        """Our writes to this group have ended. What it has read of them from its sockets may still land over there."""
        if session.peer != group or session.state in (SendState.BOOTSTRAPPING, SendState.READY):
            return []
        session.fenced = True
        session.unsettled.clear()
        if session.state is SendState.QUIET:
            return [Observe(session.room, Fact(fenced=True))]
        return self._settle(session)

    def _lose(self, session: SendSession, event: PeerLost) -> list[Effect]:
        """What a lost rank has granted is not ours to write to any more: its next incarnation gives it to others."""
        granted = session.grants.pop((event.group, event.rank), None)
        if session.opened:
            return self._fail(session) if session.peer == event.group else []
        if granted is not None:
            self._spoiled.add(session.room)  # is said when the room opens: until then nobody asks
        return []

    def _launch(self, tick: Tick, row: Row) -> None:
        session = self._sessions[row.room]
        session.move(SendInput.LAUNCHED)
        session.unfinished[tick] = None
        session.whole = row.samples
        chunk = completed_pages(row, session.launched, self._page_size)
        session.launched += len(chunk.pages)
        self._chunks.setdefault(tick, []).append(chunk)

    def _post(self, chunk: Chunk, layer: LayerId) -> list[Effect]:
        session = self._sessions.get(chunk.room)
        if session is None or session.state is not SendState.SENDING or session.failed or not session.peer:
            return []
        grant = session.route[layer]
        chunk = chunk.starting_at(grant.first_page)
        if not chunk.pages:
            return []
        granted_before = chunk.first_page - grant.first_page
        theirs = grant.pages[granted_before : granted_before + len(chunk.pages)]
        blocks = tuple(zip(chunk.pages, theirs, strict=True))
        self._tickets += 1
        session.posted += 1
        commit = Commit(chunk.room, layer, chunk.first_page * self._page_size, chunk.last)
        checked = sampled(chunk, layer, self._sample)
        instance = self._peers.instance(session.peer, grant.rank)
        self._writes[self._tickets] = Write(session, session.peer, grant.rank, instance, commit, checked)
        places = tuple(page - chunk.first_page for page in checked)
        return [Post(self._tickets, session.room, session.peer, grant.rank, layer, blocks, places)]

    def _ran(self, tick: Tick) -> list[Effect]:
        effects: list[Effect] = []
        for chunk in self._chunks.pop(tick, ()):
            session = self._sessions.get(chunk.room)
            if session is not None:
                del session.unfinished[tick]
                effects += self._settle(session)
        return effects

    def _moved(self, write: Write, moved: Moved) -> list[Effect]:
        """An unsettled write may land until a fence, at either end, proves that it cannot."""
        session = write.session
        session.posted -= 1
        renewed = self._peers.renewed(write.peer, write.rank, write.instance)
        if moved.result is Written.FAILED_UNSETTLED and not renewed:
            session.unsettled[write.peer, write.rank] = write.instance
        if moved.result is not Written.OK:
            return self._fail(session) + self._settle(session)
        checks = tuple(zip(write.checked, moved.digests, strict=True))
        commit = msgspec.structs.replace(write.commit, checks=checks) if checks else write.commit
        return [TellPeer(write.peer, write.rank, commit), *self._settle(session)]

    def _fail(self, session: SendSession) -> list[Effect]:
        if session.failed or session.state is SendState.QUIET:
            return []
        session.failed = True
        return [Observe(session.room, Fact(failed=True))]

    def _settle(self, session: SendSession) -> list[Effect]:
        """Say quiet once: nothing is outstanding here and nothing more will be posted."""
        if not session.drained:
            return []
        sent = session.state is SendState.SENDING and not session.failed
        progress = Progress.SUCCESS if sent else Progress.TRANSFERRING
        session.move(SendInput.DRAINED)
        return [Observe(session.room, Fact(progress, quiet=not session.fenced, fenced=session.fenced))]

    def _forget(self, room: Room) -> None:
        self._sessions.pop(room, None)
        self._ended.add(room)

    def open_rooms(self) -> int:
        """Sessions, for people and for tests that want none left."""
        return len(self._sessions)
