"""One rank's process from its options to its end. Each step needs the one before; all is undone in reverse."""

import contextlib
import logging
import secrets
import signal
import socket
import threading
import time
from pathlib import Path

import msgspec
import zmq

from consensus.store_link import FollowerStore, LeaderStore, PPConsensusStore
from kvtransfer.peer_link import PeerLink
from kvtransfer.posting import Posting
from kvtransfer.transports.faulty import with_faults
from kvtransfer.transports.mooncake import MooncakeTransport
from tandem.assembly import build_rank
from tandem.core.config import RankOptions, RoleName
from tandem.core.errors import ConfigError, Divergence
from tandem.core.events import Combined
from tandem.core.ids import Room
from tandem.core.members import Member
from tandem.core.messages import Fact, Formed, Hello, Join, OnRing
from tandem.core.rank import LEADER
from tandem.engine.load import build_engine, resolve_dtype
from tandem.engine.model import fingerprint, read_shape
from tandem.runtime.compute import ComputeThread
from tandem.runtime.drive import Drive, GroupLost, Links, Lost, Thrown
from tandem.runtime.dump import dump, dump_directory
from tandem.runtime.health import Health, State
from tandem.runtime.hidden import open_in, open_out
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.leash import leash
from tandem.runtime.links import Inbox, Sockets
from tandem.runtime.registry import Registry, RegistryLoop
from tandem.runtime.router_link import RouterLink
from tandem.runtime.state import AskState, NewMembers, load_of

log = logging.getLogger("tandem")

EXIT_CONFIG, EXIT_LOST, EXIT_DIVERGED = 2, 3, 4
"""Exit statuses of a rank: bad options, the group lost a member, ranks disagreed."""
FORMING_S = 120.0
"""A ring that has not formed by then gives up; the log says who is missing."""
LOOK_S = 0.05
"""How often a forming ring looks at the registry's last answer."""


class Stage:
    """Builds one rank up and runs it."""

    def __init__(self, options: RankOptions) -> None:
        self.options = options
        self._group, self._rank = options.group, options.rank
        self._undo = contextlib.ExitStack()
        self._inbox: ThreadInbox[Thrown] = ThreadInbox()
        self._members: list[Member] = []
        self._formed: Formed | None = None
        self._formed_event = threading.Event()
        self._lost: str | None = None
        self._stopping = threading.Event()
        self._drive: Drive | None = None
        self._phase = "its engine"

    def run(self) -> None:
        """Until stopped. Raises ConfigError, GroupLost or Divergence."""
        with self._undo:
            self._load()
            self._bind()
            self._meet()
            if not self._stopping.is_set():
                self._serve()

    def stop(self) -> None:
        """End `run` soon; safe in a signal handler."""
        self._stopping.set()
        if self._drive is not None:
            self._drive.stop()

    # the store link's listener, called on its thread

    def on_formed(self, formed: Formed) -> None:
        """The ring has its epoch."""
        self._formed = formed
        self._formed_event.set()

    def on_combined(self, room: Room, fact: Fact | None) -> None:
        """Rank 0: the group's fact about a room changed."""
        self._inbox.put(Combined(room, fact))

    def on_lost(self, cause: str) -> None:
        """The group cannot go on."""
        self._lost = cause
        self._inbox.put(Lost(cause))

    # the steps

    def _load(self) -> None:
        options = self.options
        shape = read_shape(options.model)
        dtype = resolve_dtype(options.dtype)
        self._engine = build_engine(
            options.model,
            self._group.layers(self._rank),
            page_size=options.limits.page_size,
            num_pages=options.limits.num_pages,
            dtype=dtype,
            threads=options.threads,
        )
        self._fingerprint = fingerprint(shape, dtype, options.limits.page_size)
        self._limits = msgspec.structs.replace(options.limits, context=shape.context)
        self._transport = with_faults(
            MooncakeTransport(options.bind or "127.0.0.1", options.transport_protocol, options.transport_device)
        )
        self._undo.callback(self._transport.close)
        region = self._engine.memory.region
        layers = region.last_layer - region.first_layer
        self._transport.register(region.base, layers * region.num_pages * region.block_bytes)

    def _bind(self) -> None:
        options, name = self.options, f"{self._group.name}-{self._rank}"
        where = options.bind or options.run_dir
        secret = Path(options.secret_file).read_bytes() if options.secret_file else b""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._undo.callback(self._context.destroy, 0)
        self._sockets = Sockets(self._context, secret)
        self._undo.callback(self._sockets.close)
        ring, ring_address = self._sockets.bind(zmq.PULL, where, f"{name}-ring")
        self._ring: Inbox[OnRing] = Inbox(ring, OnRing)
        self._hidden_in, hidden_address = open_in(self._sockets, where, f"{name}-hidden", options.run_dir)
        self._undo.callback(self._hidden_in.close)
        self._leader, self._intake, leader_address, intake_address = None, None, "", ""
        if self._rank == LEADER:
            self._leader, leader_address = self._sockets.bind(zmq.ROUTER, where, f"{name}-leader")
            self._intake, intake_address = self._sockets.bind(zmq.ROUTER, where, f"{name}-intake")
        self._hello = Hello(
            self._group.name,
            self._rank,
            self._group.size,
            secrets.randbits(62),
            self._fingerprint,
            self._transport.kind,
            self._transport.endpoint,
            self._engine.memory.region,
        )
        self._peers = PeerLink(
            self._hello,
            self._sockets,
            self._transport,
            self._group.role,
            where,
            self._inbox.wake,
            options.timer_scale,
        )
        self._undo.callback(self._peers.close)
        self._health = Health(options.http_host, options.http_port, self._ask)
        self._undo.callback(self._health.close)
        self._member = Member(
            group=self._group,
            rank=self._rank,
            incarnation=self._hello.incarnation,
            boot_ms=time.time_ns() // 1_000_000,
            host=_host(options.run_dir),
            fingerprint=self._fingerprint,
            model=options.served_model_name,
            ring=ring_address,
            hidden=hidden_address,
            http=self._health.address,
            limits=self._limits,
            leader=leader_address,
            intake=intake_address,
            peers=self._peers.address,
        )
        registry = Registry(options.registry_url, options.cluster, secret)
        self._registry = RegistryLoop(registry, lambda: self._member, self._on_members)
        self._registry.start()
        self._undo.callback(self._registry.stop)

    def _on_members(self, members: list[Member]) -> None:
        self._members = members
        if self._drive is not None:
            self._inbox.put(NewMembers(members))

    def _meet(self) -> None:
        """Wait for the other ranks of the ring, connect to the newest incarnation of each, and join."""
        deadline_s = time.monotonic() + FORMING_S
        met: list[int] = []
        self._store: PPConsensusStore | None = None
        if self._leader is not None:
            self._join(LeaderStore(self._leader, self._group.size, self._joining(), self, self.options.timer_scale))
        while not self._formed_event.wait(LOOK_S) or not met:
            if self._stopping.is_set():
                return
            if self._lost is not None:
                raise GroupLost(self._lost)
            ring = self._ring_members()
            incarnations = [member.incarnation for member in ring]
            if len(ring) == self._group.size and incarnations != met:
                met = incarnations
                self._connect(ring)
            self._phase = f"ranks {sorted({*range(self._group.size)} - {member.rank for member in ring})} of its ring"
            if time.monotonic() > deadline_s:
                raise GroupLost(f"the ring did not form within {FORMING_S:.0f} s: waiting for {self._phase}")

    def _ring_members(self) -> list[Member]:
        mine = [member for member in self._members if member.group.name == self._group.name]
        for member in mine:
            if member.group != self._group:
                raise ConfigError(f"rank {member.rank} of {self._group.name} was started as {member.group}")
        return mine

    def _joining(self) -> Join:
        member = self._member
        return Join(self._rank, member.incarnation, member.boot_ms, self._limits.num_pages, self._fingerprint)

    def _join(self, store: PPConsensusStore) -> None:
        self._store = store
        self._undo.callback(store.stop)
        store.start()

    def _connect(self, ring: list[Member]) -> None:
        self._ring_out, self._hidden_out = None, None
        if self._group.size > 1:
            following = ring[(self._rank + 1) % self._group.size]
            self._ring_out = self._sockets.connect(zmq.PUSH, following.ring)
            if following.rank != LEADER:
                most = max(self._limits.max_prefill_tokens, self._limits.max_rooms)
                slot_bytes = most * self._engine.hidden_bytes
                self._hidden_out = open_out(
                    self._sockets, self._member.host, following, self.options.run_dir, slot_bytes
                )
                self._undo.callback(self._hidden_out.close)
        if self._rank != LEADER:
            if self._store is not None:
                self._store.stop()
            leader = self._sockets.connect(zmq.DEALER, ring[0].leader)
            self._join(FollowerStore(leader, self._joining(), self, self.options.timer_scale))

    def _serve(self) -> None:
        assert self._formed is not None
        assert self._store is not None
        epoch = self._formed.epoch
        limits = msgspec.structs.replace(self._limits, num_pages=self._formed.num_pages)
        rank = build_rank(self._group, self._rank, epoch, limits)
        sends_kv = self._group.role is RoleName.PREFILL
        compute = ComputeThread(
            self._engine, self._inbox.put, lambda error: self.on_lost(f"engine: {error!r}"), layers=sends_kv
        )
        self._undo.callback(compute.close, 2.0)
        posting = Posting(self._transport, self._engine.memory.region, self._peers.hello, self._inbox.put)
        self._undo.callback(posting.close, 2.0)
        links = Links(
            ring_in=self._ring,
            ring_out=self._ring_out,
            hidden_in=self._hidden_in if self._rank != LEADER else None,
            hidden_out=self._hidden_out,
            routers=RouterLink(self._intake, lambda: load_of(rank)) if self._intake is not None else None,
            peers=self._peers,
            store=self._store,
            posting=posting,
            inbox=self._inbox,
        )
        self._drive = Drive(rank, links, compute)
        self._inbox.put(NewMembers(self._members))
        self._member = msgspec.structs.replace(self._member, epoch=epoch, limits=limits)
        self._registry.settled()
        log.info("%s rank %d of %d serves, epoch %d", self._group.name, self._rank, self._group.size, epoch)
        try:
            if not self._stopping.is_set():
                self._drive.run()
        except (GroupLost, Divergence) as error:
            path = dump(rank, str(error), Path(self.options.dump_dir) if self.options.dump_dir else dump_directory())
            log.error("%s rank %d: the epoch ends: %s; dump in %s", self._group.name, self._rank, error, path)
            raise

    def _ask(self, timeout_s: float) -> State | None:
        """On a health thread: the tick loop's state."""
        if self._drive is None:
            return {"ready": False, "waiting_for": self._phase, "group": self._group.name, "rank": self._rank}
        question = AskState()
        self._inbox.put(question)
        return question.wait(timeout_s)


def _host(run_dir: str) -> str:
    """Equal for processes that can share memory: one kernel, one name space, one run directory."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot_id}{run_dir}"


def serve(options: RankOptions) -> int:
    """Run one rank until SIGTERM, SIGINT or the end of its group. Returns the exit status."""
    stage = Stage(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stage.stop())
    if options.supervised:
        leash(lambda line: None, stage.stop)
    try:
        stage.run()
    except ConfigError as error:
        log.error("%s", error)
        return EXIT_CONFIG
    except GroupLost:
        return EXIT_LOST
    except Divergence:
        return EXIT_DIVERGED
    return 0
