"""One rank's process from its options to its end. Each step needs the one before; all is undone in reverse."""

import contextlib
import logging
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from kvtransfer.checksums import Verifying
from kvtransfer.posting import Posting
from tandem.assembly import build_rank
from tandem.core.config import RankOptions, RoleName
from tandem.core.errors import ConfigError, Divergence
from tandem.core.events import BackedUp, Combined, LayerRan, Ran, Started
from tandem.core.ids import RequestId, Room
from tandem.core.members import Member
from tandem.core.messages import Fact, Formed
from tandem.core.rank import Rank
from tandem.runtime.compute import ComputeThread
from tandem.runtime.drive import Computed, Drive, GroupLost, Links, Lost, Thrown
from tandem.runtime.dump import dump, dump_directory
from tandem.runtime.endpoints import Endpoints, open_endpoints
from tandem.runtime.health import UNAVAILABLE, Health, Reply, State
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.leash import leash
from tandem.runtime.links import check_where, read_secret
from tandem.runtime.payloads import Payloads
from tandem.runtime.record_file import RecordFile
from tandem.runtime.records import Heading
from tandem.runtime.registry import Registry, RegistryLoop
from tandem.runtime.rendezvous import Rendezvous
from tandem.runtime.resources import Resources, load_resources
from tandem.runtime.router_link import RouterLink
from tandem.runtime.state import NewMembers, Question, describe, load_of, timelines
from tandem.runtime.timeline import Timeline
from tandem.runtime.witness import Witness, now_us

log = logging.getLogger("tandem")

EXIT_STATUS: dict[type[Exception], int] = {ConfigError: 2, GroupLost: 3, Divergence: 4}
"""Of a rank: bad options, the group lost a member, ranks disagreed."""
EXIT_BUG = 1
END_S = 2.0
"""For the forward and the writes that are under way when a rank ends."""


class Stopped(Exception):
    """A signal came while the ring was forming."""


class Stage:
    """Builds one rank up and runs it. Also the store link's listener, and what the health port asks."""

    def __init__(self, options: RankOptions) -> None:
        self.options = options
        self._name = f"{options.group.name} rank {options.rank}"
        self._undo = contextlib.ExitStack()
        self._inbox: ThreadInbox[Thrown] = ThreadInbox()
        self._members: list[Member] = []
        self._formed: Formed | None = None
        self._lost: str | None = None
        self._heard: str | None = None  # the supervisor's word that another process has ended
        self._stopping = threading.Event()
        self._drive: Drive | None = None
        self._waiting_for = "its engine"

    def run(self) -> None:
        """Until stopped. Raises ConfigError, GroupLost or Divergence."""
        options = self.options
        with self._undo, contextlib.suppress(Stopped):
            health = Health(options.http_host, options.http_port, self._ask, self._timelines)
            self._undo.callback(health.close)
            secret = read_secret(options.secret_file)
            check_where(options.bind or options.run_dir)
            registry = Registry(options.registry_url, options.cluster, secret)
            resources = load_resources(options)
            endpoints = open_endpoints(options, resources, secret, self._inbox, health.address, self._undo)
            registration = self._register(registry, endpoints.member)
            self._waiting_for = "the other ranks of its ring"
            rendezvous = Rendezvous(options, resources, endpoints, self, self._undo)
            formed, following, store = rendezvous.wait(lambda: self._members, lambda: self._formed, self._check)
            limits = msgspec.structs.replace(resources.limits, num_pages=formed.num_pages)
            rank = build_rank(options.group, options.rank, formed.epoch, limits)
            heading = Heading(options.group, options.rank, formed.epoch, limits)
            timeline = self._watch(rank, resources)
            compute, posting, verifying, record = self._threads(rank, heading, resources, endpoints)
            self._undo.push(lambda kind, error, where: self._dump(rank, heading, error))
            links = Links(
                ring_in=endpoints.ring,
                ring_out=following.ring,
                payloads=None if rank.place.first else Payloads(endpoints.hidden, rank.place.epoch),
                hidden_out=following.hidden,
                routers=self._routers(rank, endpoints),
                peers=endpoints.peers,
                store=store,
                posting=posting,
                verifying=verifying,
                inbox=self._inbox,
                timeline=timeline,
                record=record,
                degraded=resources.degraded,
            )
            self._drive = Drive(rank, links, compute)
            self._introduce(self._members)
            registration.settle(msgspec.structs.replace(endpoints.member, epoch=formed.epoch, limits=limits))
            log.info("%s of %d serves, epoch %d", self._name, options.group.size, formed.epoch)
            self._check()
            self._drive.run()

    def stop(self) -> None:
        """End `run` soon; safe in a signal handler."""
        self._stopping.set()
        if self._drive is not None:
            self._drive.stop()

    def on_word(self, line: str) -> None:
        """On the leash's thread. Who is stopped because another process has ended may be the guilty one."""
        self._heard = line

    # the store link's listener, called on its thread

    def on_formed(self, formed: Formed) -> None:
        """The ring has its epoch."""
        self._formed = formed

    def on_combined(self, room: Room, fact: Fact | None) -> None:
        """Rank 0: the group's fact about a room changed."""
        self._inbox.put(Combined(room, fact))

    def on_lost(self, cause: str) -> None:
        """The group cannot go on."""
        self._lost = cause
        self._inbox.put(Lost(cause))

    def on_thread_death(self, death: threading.ExceptHookArgs) -> None:
        """Any thread's: what it did would never be done again, and nobody would know."""
        name = death.thread.name if death.thread is not None else "?"
        error = death.exc_value
        log.error("thread %s died", name, exc_info=error)
        self.on_lost(f"thread {name} of {self._name} died: {error!r}")

    # the steps

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopped
        if self._lost is not None:
            raise GroupLost(self._lost)

    def _register(self, registry: Registry, member: Member) -> RegistryLoop:
        loop = RegistryLoop(registry, member, self._on_members, self._on_replaced)
        loop.start()
        self._undo.callback(loop.stop)
        return loop

    def _on_members(self, members: list[Member]) -> None:
        """On the registry's thread."""
        self._members = members
        if self._drive is not None:
            self._introduce(members)

    def _introduce(self, members: list[Member]) -> None:
        """A colocated rank has nobody to move KV to or from."""
        if self.options.group.role is not RoleName.COLOCATED:
            self._inbox.put(NewMembers(members))

    def _on_replaced(self, other: Member) -> None:
        """On the registry's thread: who was started later stays."""
        self.on_lost(f"another process has taken the place of {self._name}: it serves /state on {other.http}")

    def _engine_failed(self, error: BaseException) -> None:
        log.error("the engine failed", exc_info=error)
        self.on_lost(f"the engine of {self._name} failed: {error!r}")

    def _watch(self, rank: Rank, resources: Resources) -> Timeline:
        """What happens to its rooms is remembered from now on."""
        block_bytes = resources.engine.memory.region.block_bytes
        timeline = Timeline(self.options.group.role, rank.scheduler.role.kinds, block_bytes)
        rank.courier = Witness(rank.courier, timeline)
        return timeline

    def _computed(self, event: Started | LayerRan | Ran | BackedUp) -> None:
        """On the engine's thread."""
        self._inbox.put(Computed(now_us(), event))

    def _threads(
        self, rank: Rank, heading: Heading, resources: Resources, endpoints: Endpoints
    ) -> tuple[ComputeThread, Posting, Verifying, RecordFile | None]:
        """What works beside the tick loop."""
        engine, options, peers = resources.engine, self.options, endpoints.peers
        posting = Posting(resources.edges, engine.memory, peers.hello, self._inbox.put, peers.wrote)
        self._undo.callback(posting.close, END_S)
        verifying = Verifying(engine.memory, self._inbox.put)
        self._undo.callback(verifying.close, END_S)
        sends_kv = options.group.role is RoleName.PREFILL
        compute = ComputeThread(engine, resources.host, self._computed, self._engine_failed, layers=sends_kv)
        self._undo.callback(compute.close, END_S)
        record = None
        if options.record_dir:
            record = RecordFile(Path(options.record_dir), heading, rank.recorder)
            self._undo.callback(record.close, END_S)
        return compute, posting, verifying, record

    def _routers(self, rank: Rank, endpoints: Endpoints) -> RouterLink | None:
        if endpoints.intake is None:
            return None
        routers = RouterLink(endpoints.intake, lambda: load_of(rank), self.options.timer_scale)
        self._undo.callback(routers.close)
        return routers

    def _dump(self, rank: Rank, heading: Heading, error: BaseException | None) -> bool:
        """Whatever ends the epoch, also a bug of ours: leave the flight record behind. Not when all is in order."""
        cause = self._heard if error is None else str(error)
        if cause is not None:
            directory = Path(self.options.dump_dir) if self.options.dump_dir else dump_directory()
            try:
                path = dump(rank, heading, cause, directory)
                log.error("%s: the epoch ends; its flight record is %s", self._name, path)
            except OSError as failure:
                log.error("%s: the epoch ends; its flight record cannot be written: %s", self._name, failure)
        return False

    def _ask(self, timeout_s: float) -> State | None:
        """On a health thread: the tick loop's state."""
        if self._drive is None:
            group, rank = self.options.group.name, self.options.rank
            return {"ready": False, "waiting_for": self._waiting_for, "group": group, "rank": rank}
        question = Question(describe)
        self._inbox.put(question)
        return question.wait(timeout_s)

    def _timelines(self, rid: RequestId | None, timeout_s: float) -> Reply | None:
        """On a health thread: an overview of the newest rooms, or all about one request."""
        if self._drive is None:
            return UNAVAILABLE, msgspec.json.encode({"error": f"not ready: waiting for {self._waiting_for}"})
        question = Question(partial(timelines, rid))
        self._inbox.put(question)
        return question.wait(timeout_s)


def serve(options: RankOptions) -> NoReturn:
    """Run one rank until SIGTERM, SIGINT or the end of its group, and end the process.

    At once, when all is said: what the interpreter would still take apart, the kernel takes back as well.
    """
    status = _serve(options)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)


def _serve(options: RankOptions) -> int:
    stage = Stage(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stage.stop())
    threading.excepthook = stage.on_thread_death
    if options.supervised:
        leash(stage.on_word, stage.stop)
    try:
        stage.run()
    except (ConfigError, GroupLost, Divergence) as error:
        log.error("%s", error)
        return EXIT_STATUS[type(error)]
    except Exception:
        log.exception("a bug of ours")
        return EXIT_BUG
    return 0
