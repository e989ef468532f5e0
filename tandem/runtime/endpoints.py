"""Everything of a rank that others connect to, and the registry entry that says where it is."""

import contextlib
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import zmq

from kvtransfer.peer_link import PeerLink
from tandem.core.config import RankOptions
from tandem.core.ids import LEADER
from tandem.core.members import Member
from tandem.core.messages import Hello, OnRing
from tandem.runtime.drive import Thrown
from tandem.runtime.hidden import PulledIn, open_in
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.links import Inbox, Sockets
from tandem.runtime.resources import Resources

Socket = zmq.Socket[bytes]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Bound sockets. `leader` and `intake` are rank 0's alone."""

    sockets: Sockets[Socket]
    ring: Inbox[OnRing]
    hidden: PulledIn
    leader: Socket | None
    intake: Socket | None
    peers: PeerLink
    member: Member


def open_endpoints(
    options: RankOptions,
    resources: Resources,
    secret: bytes,
    inbox: ThreadInbox[Thrown],
    http: str,
    undo: contextlib.ExitStack,
) -> Endpoints:
    """Bind on `options.bind`, or inside the run directory. Raises ConfigError."""
    name, where = f"{options.group.name}-{options.rank}", options.bind or options.run_dir
    context: zmq.Context[Socket] = zmq.Context()
    undo.callback(context.destroy, 0)
    sockets = Sockets(context, secret)
    undo.callback(sockets.close)
    ring, ring_address = sockets.bind(zmq.PULL, where, f"{name}-ring")
    hidden, hidden_address = open_in(sockets, where, f"{name}-hidden", options.run_dir)
    undo.callback(hidden.close)
    leader, intake, leader_address, intake_address = None, None, "", ""
    if options.rank == LEADER:
        leader, leader_address = sockets.bind(zmq.ROUTER, where, f"{name}-leader")
        intake, intake_address = sockets.bind(zmq.ROUTER, where, f"{name}-intake")
    hello = introduce(options, resources)
    peers = PeerLink(
        hello,
        sockets,
        resources.edges,
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
        incarnation=hello.incarnation,
        boot_ms=time.time_ns() // 1_000_000,
        host=host_of(options.run_dir),
        fingerprint=resources.fingerprint,
        model=options.served_model_name,
        http=http,
        limits=resources.limits,
        ring=ring_address,
        hidden=hidden_address,
        leader=leader_address,
        intake=intake_address,
        peers=peers.address,
    )
    return Endpoints(sockets, Inbox(ring, OnRing), hidden, leader, intake, peers, member)


def introduce(options: RankOptions, resources: Resources) -> Hello:
    """What this incarnation says of itself to ranks of other groups."""
    return Hello(
        group=options.group.name,
        rank=options.rank,
        size=options.group.size,
        incarnation=secrets.randbits(62),
        fingerprint=resources.fingerprint,
        transport=resources.edges.kind,
        endpoint="",  # each group that writes here is given one of its own
        region=resources.engine.memory.region,
    )


def host_of(run_dir: str) -> str:
    """Equal for processes that can share memory: one kernel, one name space, one run directory."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot_id}{run_dir}"
