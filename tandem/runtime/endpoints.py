"""Everything of one incarnation that others connect to, and the registry entry that says where it is."""

import contextlib
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import zmq

from kvtransfer.edges import Edges
from kvtransfer.peer_link import PeerLink
from tandem.core.config import RankOptions
from tandem.core.ids import LEADER
from tandem.core.members import Member
from tandem.core.messages import Hello, OnRing
from tandem.ports import HiddenIn
from tandem.runtime.carrying import carried_in
from tandem.runtime.drive import Thrown
from tandem.runtime.hidden import open_in
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.links import Inbox, Sockets, socket_name, sweep
from tandem.runtime.resources import Process, Resources
from tandem.runtime.router_link import UNREAD
from tandem.runtime.transports import open_edges

Socket = zmq.Socket[bytes]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Bound sockets, and transports for KV. `leader` and `intake` are rank 0's alone."""

    sockets: Sockets[Socket]
    ring: Inbox[OnRing]
    hidden: HiddenIn
    leader: Socket | None
    intake: Socket | None
    edges: Edges
    degraded: str  # in what way KV moves worse than it was asked to
    peers: PeerLink
    member: Member


def open_endpoints(process: Process, inbox: ThreadInbox[Thrown], undo: contextlib.ExitStack) -> Endpoints:
    """Bind on `options.bind`, or inside the run directory. Transports are left to the caller. Raises ConfigError."""
    options, resources = process.options, process.resources
    where, incarnation = options.bind or options.run_dir, secrets.randbits(62)
    sweep(options.run_dir, options.group.name, options.rank)

    def name(kind: str) -> str:
        return socket_name(kind, options.group.name, options.rank, incarnation)

    context: zmq.Context[Socket] = zmq.Context()
    undo.callback(context.destroy, 0)
    sockets = Sockets(context, process.secret)
    undo.callback(sockets.close)
    ring, ring_address = sockets.bind(zmq.PULL, where, name("ring"))
    pulled, hidden_address = open_in(sockets, where, name("hidden"), options.run_dir)
    hidden = carried_in(options, pulled, resources.engine)
    undo.callback(hidden.close)
    leader, intake, leader_address, intake_address = None, None, "", ""
    if options.rank == LEADER:
        leader, leader_address = sockets.bind(zmq.ROUTER, where, name("leader"))
        intake, intake_address = sockets.bind(zmq.ROUTER, where, name("intake"), high_water=UNREAD)
    edges, degraded = open_edges(options, resources.engine.memory, incarnation)
    hello = introduce(options, resources, edges.kind, incarnation)
    peers = PeerLink(
        hello,
        sockets,
        edges,
        resources.engine.memory.tail,
        options.group.role,
        where,
        inbox.wake,
        inbox.put,
        options.timer_scale,
    )
    undo.callback(peers.close)
    member = Member(
        group=options.group,
        rank=options.rank,
        incarnation=incarnation,
        boot_ms=process.boot_ms,
        host=host_of(options.run_dir),
        fingerprint=resources.fingerprint,
        model=options.served_model_name,
        http=process.http,
        limits=resources.limits,
        ring=ring_address,
        hidden=hidden_address,
        leader=leader_address,
        intake=intake_address,
        peers=peers.address,
        engine=resources.chosen.engine,
        engine_why=resources.chosen.why,
        engine_fallback=resources.chosen.fallback,
    )
    return Endpoints(sockets, Inbox(ring, OnRing), hidden, leader, intake, edges, degraded, peers, member)


def introduce(options: RankOptions, resources: Resources, transport: str, incarnation: int) -> Hello:
    """What this incarnation says of itself to ranks of other groups."""
    return Hello(
        group=options.group.name,
        rank=options.rank,
        size=options.group.size,
        incarnation=incarnation,
        fingerprint=resources.fingerprint,
        transport=transport,
        endpoint="",  # each group that writes here is given one of its own
        region=resources.engine.memory.region,
        engine=resources.chosen.engine,
    )


def host_of(run_dir: str) -> str:
    """Equal for processes that can share memory: one kernel, and one run directory, whose path alone says little.

    Containers of one machine may have the same host name, and the same path for directories of their own.
    """
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    found = os.stat(run_dir)
    return f"{socket.gethostname()}/{boot_id}{run_dir}#{found.st_dev}.{found.st_ino}"
