"""One rank's end of the peer link in virtual time: handshakes, what is said in a session, partings and fences.

As in production, decode ranks call and prefill ranks answer, so a decode rank opens after its peer has. What is said
belongs to a session, arrives in order, and is lost once either end has lost the other.
"""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvtransfer.parted import Parted
from tandem.core.config import RoleName
from tandem.core.effects import TellPeer
from tandem.core.events import Fenced, PeerLost, PeerOpened
from tandem.core.ids import RankId
from tandem.core.inputs import FirstToken
from tandem.core.messages import Cancelled, Commit, Grant, Hello, Quiet
from tandem.sim.clock import between, stream
from tandem.sim.wire import over_the_wire

if TYPE_CHECKING:
    from tandem.sim.node import Node

Said = Grant | Commit | FirstToken | Quiet | Cancelled
Key = tuple[str, RankId]
"""A rank of another group, whichever incarnation."""


class Known(NamedTuple):
    """A rank that is open."""

    node: "Node"
    session: int
    fence: int  # how often it had cut our group off when we met


class PeerLink:
    """What one rank knows of the ranks of other groups. It changes when the rank's tick loop turns, not before."""

    def __init__(self, node: "Node") -> None:
        self.fences: Counter[str] = Counter()  # that are done, by the group that was cut off
        self._node = node
        self._world = node.world
        self._rng = stream(node.world.seed, f"peers {node.name}")
        self._open: dict[Key, Known] = {}
        self._greeted: dict[Key, int] = {}  # the session of the last Hello, until it is open
        self._callee: dict[Key, Node] = {}  # who is greeted, or has been
        self._newest: dict[Key, int] = {}  # session that a caller has named
        self._going_on: Counter[str] = Counter()  # fences
        self._parted = Parted()
        self._draining: list[str] = []  # groups whose fence waits for the end of writes to them

    def known(self, group: str, rank: RankId) -> Known | None:
        """A rank that is open."""
        return self._open.get((group, rank))

    # the handshake

    def call(self, key: Key) -> None:
        """A decode rank will say Hello, unless it finds that all is well."""
        self._soon(partial(self._renew, key))

    def _soon(self, action: "partial[None]") -> None:
        delay_us = between(self._rng, self._world.pace.handshake_us)
        self._world.clock.after(delay_us, partial(self._node.take, action))

    def _renew(self, key: Key) -> None:
        """Lose a rank that has forgotten us or has a successor; then greet whoever is there."""
        peer, known = self._world.node(*key), self._open.get(key)
        if known is not None and known.session != peer.peers.session(self._node.key):
            self.lose(key)
        if key not in self._open and not self._going_on[key[0]]:
            if self._callee.get(key) is not peer:
                self._greeted.pop(key, None)
                self._callee[key] = peer
            if key not in self._greeted:
                self._greeted[key] = next(self._world.sessions)
            self._send(peer, partial(peer.peers.answer, self._node, self._greeted[key], self._hello(key[0])))

    def session(self, key: Key) -> int | None:
        """The one in which a rank is open, if it is."""
        known = self._open.get(key)
        return None if known is None else known.session

    def _hello(self, group: str) -> Hello:
        return over_the_wire(msgspec.structs.replace(self._node.hello, fence=self.fences[group]))

    def _send(self, peer: "Node", deliver: "partial[None]") -> None:
        """It is taken by the other's tick loop."""
        self._deliver(peer, partial(peer.take, deliver))

    def _deliver(self, peer: "Node", deliver: "partial[None]") -> None:
        """First in, first out. Over a link that is cut, words are said again until they are heard."""
        until_us = self._world.cut_until_us(self._node, peer)
        if until_us is not None:
            self._world.channel(self._node.name, peer.name, "peer").hold(until_us)
        self._world.send(self._node, peer, "peer", deliver)

    def answer(self, caller: "Node", session: int, hello: Hello) -> None:
        """A prefill rank has been greeted, maybe not for the first time, maybe in a session that has ended here."""
        key = caller.key
        if self._parted.past(*key, caller.rank.place.epoch):
            return
        newest = self._newest.get(key, 0)
        if session == self.session(key):
            self._let_in(caller, session)
        elif session == newest and session != self._greeted.get(key):
            self._send(caller, partial(caller.peers.forgotten, self._node.key, session))
        elif session > newest:  # else a successor has overtaken it
            self._newest[key] = session
            self.lose(key)
            self._begin(caller, session, hello)

    def _begin(self, caller: "Node", session: int, hello: Hello) -> None:
        """While a fence goes on nobody is answered: afterwards all are told to call again."""
        if not self._going_on[hello.group]:
            self._greeted[caller.key] = session
            self._soon(partial(self._accept, caller, session, hello))

    def _accept(self, caller: "Node", session: int, hello: Hello) -> None:
        """The transport has connected."""
        if self._greeted.get(caller.key) == session and not caller.dead:
            self._opened(caller, session, hello)
            self._let_in(caller, session)

    def _let_in(self, caller: "Node", session: int) -> None:
        self._send(caller, partial(caller.peers.answered, self._node, session, self._hello(caller.key[0])))

    def answered(self, peer: "Node", session: int, hello: Hello) -> None:
        """A decode rank has been let in, unless it has greeted anew meanwhile, or begun a fence."""
        if self._greeted.get(peer.key) == session:
            self._opened(peer, session, hello)

    def _opened(self, peer: "Node", session: int, hello: Hello) -> None:
        del self._greeted[peer.key]
        self._open[peer.key] = Known(peer, session, hello.fence)
        self._node.on(PeerOpened(hello))

    # words

    def say(self, effect: TellPeer) -> None:
        """To a rank that is open, else it is lost."""
        known = self._open.get((effect.group, effect.rank))
        if known is None:
            self._world.lose_word(self._node, effect.group, effect.message)
            return
        peer, session, _ = known
        arrive = partial(self._arrive, peer, session, over_the_wire(effect.message))
        self._deliver(peer, arrive)

    def _arrive(self, peer: "Node", session: int, message: Said) -> None:
        """It may be about a room of the next incarnation, as long as we take the dead one for open."""
        if peer.dead:
            self._world.lose_word(self._node, peer.key[0], message)
        else:
            peer.take(partial(peer.peers.hear, self._node, session, message))

    def hear(self, sender: "Node", session: int, message: Said) -> None:
        """Only what is said in the session that is open."""
        if self.session(sender.key) == session:
            self._node.on(message)
        else:
            self._world.lose_word(sender, self._node.key[0], message)

    # losing each other

    def lose(self, key: Key, session: int | None = None) -> None:
        """A rank is lost, if it is open; in this session, if one is given."""
        if key in self._open and session in (None, self._open[key].session):
            del self._open[key]
            self._node.on(PeerLost(*key))

    def lose_after(self, delay_us: int, key: Key) -> None:
        """It is lost by and by, unless that session has ended before."""
        if key in self._open:
            lose = partial(self.lose, key, self._open[key].session)
            self._world.clock.after(delay_us, partial(self._node.take, lose))

    def forgotten(self, key: Key, session: int) -> None:
        """A decode rank hears that a prefill rank knows no session up to this one."""
        if max(self.session(key) or 0, self._greeted.get(key, 0)) <= session:
            self.lose(key)
            self._greeted.pop(key, None)
            self.call(key)

    # fences

    def fence(self, group: str) -> None:
        """Begin one: the whole group is lost at once, and none of it is met before the fence is done."""
        self._world.fences += 1
        self._going_on[group] += 1
        for key in [key for key in self._open if key[0] == group]:
            del self._open[key]
            self._world.clock.after(0, partial(self._node.on, PeerLost(*key)))
        self._greeted = {key: session for key, session in self._greeted.items() if key[0] != group}
        self._world.clock.after(between(self._rng, self._world.pace.fence_us), partial(self._finish, group))

    def _finish(self, group: str) -> None:
        """Not on the tick loop: it is done once writes to the group have ended. From now on nothing of it lands."""
        if self._node.dead:
            return
        if self._node.writes.posted(group):
            self._draining.append(group)
            return
        self.fences[group] += 1
        self._node.writes.detach(group)
        self._node.take(partial(self._fenced, group))

    def write_ended(self) -> None:
        """A fence may have waited for it."""
        draining, self._draining = self._draining, []
        for group in draining:
            self._finish(group)

    def _fenced(self, group: str) -> None:
        self._going_on[group] -= 1
        self._node.on(Fenced(group))
        if not self._going_on[group]:
            for peer in self._world.others(self._node):
                if peer.key[0] == group:
                    self.meet_again(peer)

    def meet_again(self, peer: "Node") -> None:
        """A rank that is not open: a decode rank calls, a prefill rank has itself called."""
        if peer.key in self._open:
            return
        if self._node.role is RoleName.DECODE:
            self.call(peer.key)
        else:
            self._send(peer, partial(peer.peers.forgotten, self._node.key, self._newest.get(peer.key, 0)))
