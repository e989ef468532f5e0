"""One transport per peer group, so that a stuck one, and the end of one, is nobody else's business."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvtransfer.gate import Gate
from tandem.core.messages import Hello
from tandem.ports import Transport

MAX_GROUPS = 64
"""Peer groups of one rank."""
LEAVE_S = 90.0
"""A fence waits so long for writes that are under way, then it has failed. They give up before."""


@dataclass(slots=True)
class _Edge:
    """The transport of one peer group, from its first use to its fence."""

    transport: Transport
    gate: Gate = field(default_factory=Gate)
    met: dict[str, int] = field(default_factory=dict)  # incarnation by endpoint


class Edges:
    """Makes transports when they are needed and ends them. All methods are for any thread; most may block.

    `make` gives a transport with the page pool registered. The first one is made at once, so that a rank which cannot
    have any is told so at its start: whatever `make` raises then is raised here.
    """

    def __init__(self, make: Callable[[], Transport]) -> None:
        self._make = make
        self._spare = [make()]
        self.kind = self._spare[0].kind
        self._edges: dict[str, _Edge] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._closed = False

    def open(self, group: str) -> Transport:
        """The group's transport, made if need be.

        Raises what `make` raises, ConnectionError for one group too many and when all have been closed.
        """
        return self._edge(group).transport

    def connect(self, peer: Hello, deadline_s: float) -> Transport:
        """The transport of a peer's group, which can reach it now. Raises OSError, and what `open` raises.

        A transport takes whoever is at an endpoint for who was there before, and what it knows of it is out of date
        then. So another incarnation at a known endpoint gets a new transport. If the old one could not be ended then,
        it is used by nobody any more, and whoever connects next tries to end it again.
        """
        edge = self._edge(peer.group)
        if edge.gate.shut or edge.met.setdefault(peer.endpoint, peer.incarnation) != peer.incarnation:
            self._end(peer.group, edge)
            return self.connect(peer, deadline_s)
        edge.transport.connect(peer, deadline_s)
        return edge.transport

    @contextmanager
    def using(self, group: str) -> Iterator[Transport | None]:
        """The group's transport for a write; None if it has none now. A fence waits until the block has ended."""
        edge = self._edges.get(group)
        if edge is None or not edge.gate.enter():
            yield None
            return
        try:
            yield edge.transport
        finally:
            edge.gate.leave()

    def fence(self, group: str) -> None:
        """End the group's transport: when this returns, nothing of the group can land here any more, and no write of
        ours to the group can still read our pages. The next use of the group makes another transport.

        Raises OSError when that could not be done: nothing is fenced then, call it again.
        """
        if group not in self._locks:
            return  # it has never been met
        with self._lock(group):  # one that is being made counts
            edge = self._edges.get(group)
        if edge is not None:
            self._end(group, edge)

    def close(self) -> None:
        """End all transports, for good. Raises OSError like `fence`."""
        self._closed = True
        for group in list(self._locks):  # also those whose transport is being made
            self.fence(group)
        while self._spare:
            self._spare.pop().close()

    def _end(self, group: str, edge: _Edge) -> None:
        """See `fence`. Does nothing if somebody else has ended it: the group may have its next one already."""
        with self._lock(group):
            if self._edges.get(group) is not edge:
                return
            edge.gate.close(0)
            edge.transport.close()  # ends the writes under way, or waits for them
            if not edge.gate.close(LEAVE_S):
                raise TimeoutError(f"a write to {group} has not ended within {LEAVE_S:.0f} s")
            del self._edges[group]

    def _edge(self, group: str) -> _Edge:
        """The group's edge, made if need be."""
        with self._lock(group):
            if self._closed:
                raise ConnectionError("all transports of this rank have been closed")
            if group not in self._edges:
                self._edges[group] = _Edge(self._spare_or_new())
            return self._edges[group]

    def _spare_or_new(self) -> Transport:
        try:
            return self._spare.pop()
        except IndexError:
            return self._make()

    def _lock(self, group: str) -> threading.Lock:
        if group not in self._locks and len(self._locks) >= MAX_GROUPS:
            raise ConnectionError(f"{group} is one more than the {MAX_GROUPS} groups that a rank exchanges KV with")
        return self._locks.setdefault(group, threading.Lock())
