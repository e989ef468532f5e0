"""One rank's process from its options to its end. Each step needs the one before; all is undone in reverse."""

import contextlib
import logging
import signal
import threading
from pathlib import Path

import msgspec

from consensus.store_link import PPConsensusStore
from kvtransfer.posting import Posting
from tandem.assembly import build_rank
from tandem.core.config import RankOptions, RoleName
from tandem.core.errors import ConfigError, Divergence
from tandem.core.events import Combined
from tandem.core.ids import Room
from tandem.core.members import Member
from tandem.core.messages import Fact, Formed
from tandem.core.rank import LEADER, Rank
from tandem.runtime.body import Body, load_body
from tandem.runtime.compute import ComputeThread
from tandem.runtime.doors import Doors, open_doors, read_secret
from tandem.runtime.drive import Drive, GroupLost, Links, Lost, Thrown
from tandem.runtime.dump import dump, dump_directory
from tandem.runtime.health import Health, State
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.leash import leash
from tandem.runtime.meeting import Meeting, Way
from tandem.runtime.registry import Registry, RegistryLoop
from tandem.runtime.router_link import RouterLink
from tandem.runtime.state import AskState, NewMembers, load_of

log = logging.getLogger("tandem")

EXIT_STATUS: dict[type[Exception], int] = {ConfigError: 2, GroupLost: 3, Divergence: 4}
"""Of a rank: bad options, the group lost a member, ranks disagreed. Anything else is our bug and shows a traceback."""
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
        self._formed_event = threading.Event()
        self._lost: str | None = None
        self._stopping = threading.Event()
        self._drive: Drive | None = None
        self._waiting_for = "its engine"

    def run(self) -> None:
        """Until stopped. Raises ConfigError, GroupLost or Divergence."""
        options = self.options
        with self._undo, contextlib.suppress(Stopped):
            health = Health(options.http_host, options.http_port, self._ask)
            self._undo.callback(health.close)
            body = load_body(options, self._undo)
            doors = open_doors(options, body, self._inbox.wake, health.address, self._undo)
            registration = self._register(doors.member)
            self._waiting_for = "the other ranks of its ring"
            meeting = Meeting(options, body, doors, self, self._undo)
            way, store = meeting.wait(lambda: self._members, self._check, self._formed_event)
            assert self._formed is not None
            limits = msgspec.structs.replace(body.limits, num_pages=self._formed.num_pages)
            rank = build_rank(options.group, options.rank, self._formed.epoch, limits)
            self._undo.push(lambda kind, error, where: self._dump(rank, error))
            self._drive = Drive(rank, self._links(rank, body, doors, way, store), self._compute(body))
            self._inbox.put(NewMembers(self._members))
            registration.settle(msgspec.structs.replace(doors.member, epoch=self._formed.epoch, limits=limits))
            log.info("%s of %d serves, epoch %d", self._name, options.group.size, self._formed.epoch)
            self._check()
            self._drive.run()

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

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopped
        if self._lost is not None:
            raise GroupLost(self._lost)

    def _register(self, member: Member) -> RegistryLoop:
        registry = Registry(self.options.registry_url, self.options.cluster, read_secret(self.options.secret_file))
        loop = RegistryLoop(registry, member, self._on_members)
        loop.start()
        self._undo.callback(loop.stop)
        return loop

    def _on_members(self, members: list[Member]) -> None:
        """On the registry's thread."""
        self._members = members
        if self._drive is not None:
            self._inbox.put(NewMembers(members))

    def _compute(self, body: Body) -> ComputeThread:
        sends_kv = self.options.group.role is RoleName.PREFILL
        compute = ComputeThread(body.engine, self._inbox.put, self._engine_failed, layers=sends_kv)
        self._undo.callback(compute.close, END_S)
        return compute

    def _engine_failed(self, error: BaseException) -> None:
        self.on_lost(f"the engine of {self._name} failed: {error!r}")

    def _links(self, rank: Rank, body: Body, doors: Doors, way: Way, store: PPConsensusStore) -> Links:
        posting = Posting(body.transport, body.engine.memory.region, doors.peers.hello, self._inbox.put)
        self._undo.callback(posting.close, END_S)
        return Links(
            ring_in=doors.ring,
            ring_out=way.ring,
            hidden_in=None if rank.place.rank == LEADER else doors.hidden,
            hidden_out=way.hidden,
            routers=RouterLink(doors.intake, lambda: load_of(rank)) if doors.intake is not None else None,
            peers=doors.peers,
            store=store,
            posting=posting,
            inbox=self._inbox,
        )

    def _dump(self, rank: Rank, error: BaseException | None) -> bool:
        """Whatever ends the epoch, also a bug of ours: leave the flight record behind."""
        if error is not None and not isinstance(error, Stopped):
            directory = Path(self.options.dump_dir) if self.options.dump_dir else dump_directory()
            log.error("%s: the epoch ends; its flight record is %s", self._name, dump(rank, str(error), directory))
        return False

    def _ask(self, timeout_s: float) -> State | None:
        """On a health thread: the tick loop's state."""
        if self._drive is None:
            group, rank = self.options.group.name, self.options.rank
            return {"ready": False, "waiting_for": self._waiting_for, "group": group, "rank": rank}
        question = AskState()
        self._inbox.put(question)
        return question.wait(timeout_s)


def serve(options: RankOptions) -> int:
    """Run one rank until SIGTERM, SIGINT or the end of its group. Returns the exit status."""
    stage = Stage(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stage.stop())
    if options.supervised:
        leash(lambda line: None, stage.stop)
    try:
        stage.run()
    except (ConfigError, GroupLost, Divergence) as error:
        log.error("%s", error)
        return EXIT_STATUS[type(error)]
    return 0
