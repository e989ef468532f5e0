"""A rank that serves one epoch: its scheduler, what works beside it, and the tick loop in the middle."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from consensus.pulse import Pulse
from consensus.store_link import PPConsensusStore
from kvtransfer.checksums import Verifying
from kvtransfer.posting import Posting
from tandem.assembly import build_rank
from tandem.core.config import RoleName
from tandem.core.ends import End, EndKind
from tandem.core.messages import Formed
from tandem.core.requests import Reason
from tandem.runtime.compiling import Compiling
from tandem.runtime.compute import ComputeThread
from tandem.runtime.drills import drive_of, engine_of
from tandem.runtime.drive import Computed, Links, Thrown
from tandem.runtime.dump import dump, dump_directory
from tandem.runtime.endings import EpochOver, Unusable, end_of
from tandem.runtime.endpoints import Endpoints
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.payloads import Payloads
from tandem.runtime.record_file import RecordFile
from tandem.runtime.records import Heading
from tandem.runtime.rendezvous import NextRank
from tandem.runtime.resources import Process
from tandem.runtime.router_link import RouterLink
from tandem.runtime.state import load_of
from tandem.runtime.timeline import Timeline
from tandem.runtime.witness import Witness, now_us

log = logging.getLogger("tandem")


@dataclass(frozen=True, slots=True)
class Place:
    """What an incarnation gives to the rank that serves in it."""

    inbox: ThreadInbox[Thrown]
    pulse: Pulse
    throw: Callable[[Exception], None]  # ends the incarnation, from any thread
    patience_s: Callable[[], float]  # for each thread, once the end has begun
    undo: contextlib.ExitStack


class Serving:
    """`member` is its registry entry: the epoch, and the limits on which all ranks have agreed."""

    def __init__(
        self,
        process: Process,
        endpoints: Endpoints,
        formed: Formed,
        following: NextRank,
        store: PPConsensusStore,
        place: Place,
    ) -> None:
        options = process.options
        limits = msgspec.structs.replace(process.resources.limits, num_pages=formed.num_pages)
        self.member = msgspec.structs.replace(endpoints.member, epoch=formed.epoch, limits=limits)
        self._process = process
        self._place = place
        self._heading = Heading(options.group, options.rank, formed.epoch, limits)
        self._rank = rank = build_rank(options.group, options.rank, formed.epoch, limits)
        self._store = store
        endpoints.peers.begin(formed.epoch)
        self._routers: RouterLink | None = None
        if endpoints.intake is not None:
            journal = rank.scheduler.role.pool.keep_journal()
            self._routers = RouterLink(endpoints.intake, lambda: load_of(rank), journal, options.timer_scale)
        timeline = self._watch()
        compute, posting, verifying, compiling = self._threads(endpoints)
        links = Links(
            ring_in=endpoints.ring,
            ring_out=following.ring,
            payloads=None if rank.place.first else Payloads(endpoints.hidden, formed.epoch),
            hidden_out=following.hidden,
            routers=self._routers,
            peers=endpoints.peers,
            store=store,
            posting=posting,
            verifying=verifying,
            compiling=compiling,
            inbox=place.inbox,
            timeline=timeline,
            pulse=place.pulse,
            record=self._record(),
            transport=endpoints.edges.kind,
            degraded=endpoints.degraded,
        )
        self.drive = drive_of(options)(rank, links, compute, options.drain_s)
        log.info("%s of %d serves, epoch %d", process.name, options.group.size, formed.epoch)

    def part(self, error: BaseException) -> End:
        """The epoch is over. Everybody hears of it first; then, unless all is in order, a flight record is left behind.

        Every rank leaves one: who is idle may be the guilty one. Returns it.
        """
        end = end_of(error, self._process.name)
        self._store.end(end)
        if self._routers is not None:
            self._routers.close(Reason.GROUP_LEFT if end.left else Reason.GROUP_LOST, end.cause)
        level = logging.INFO if end.left else logging.ERROR
        log.log(level, "%s: epoch %d is over: %s", self._process.name, self._heading.epoch, end.cause)
        if not end.left:
            self._dump(end.cause)
        return end

    def _dump(self, cause: str) -> None:
        given = self._process.options.dump_dir
        try:
            path = dump(self._rank, self._heading, cause, Path(given) if given else dump_directory())
            log.error("%s: its flight record is %s", self._process.name, path)
        except OSError as failure:
            log.error("%s: its flight record cannot be written: %s", self._process.name, failure)

    def _watch(self) -> Timeline:
        """What happens to the rank's rooms is remembered from now on."""
        block_bytes = self._process.resources.engine.memory.region.block_bytes
        options, scheduler, tally = self._process.options, self._rank.scheduler, self._process.tally
        tally.begin(scheduler.flights, block_bytes * options.group.partition[options.rank])
        timeline = Timeline(options.group.role, scheduler.role.kinds, block_bytes, tally)
        self._rank.courier = Witness(self._rank.courier, timeline)
        return timeline

    def _threads(self, endpoints: Endpoints) -> tuple[ComputeThread, Posting, Verifying, Compiling]:
        """What works beside the tick loop."""
        resources, place, peers = self._process.resources, self._place, endpoints.peers
        engine = resources.engine
        posting = Posting(endpoints.edges, engine.memory, peers.hello, place.inbox.put, peers.wrote)
        verifying = Verifying(engine.memory, place.inbox.put)
        compute = ComputeThread(
            engine_of(self._process.options, engine),
            resources.host,
            lambda event: place.inbox.put(Computed(now_us(), event)),
            lambda error: self._engine_failed(error, compute),
            place.pulse,
            layers=self._process.options.group.role is RoleName.PREFILL,
        )
        compiling = Compiling(engine.compile, place.inbox.put, self._compiling_failed)
        for worker in (compiling, posting, verifying, compute):
            place.undo.callback(self._end, worker.close)
        return compute, posting, verifying, compiling

    def _end(self, close: Callable[[float], object]) -> None:
        close(self._place.patience_s())

    def _engine_failed(self, error: BaseException, compute: ComputeThread) -> None:
        """On the engine's thread. One that has computed nothing in its whole epoch is not tried again."""
        log.error("the engine failed", exc_info=error)
        cause = f"the engine of {self._process.name} failed: {error!r}"
        self._place.throw((EpochOver if compute.ran else Unusable)(cause, EndKind.ENGINE))

    def _compiling_failed(self, error: Exception) -> None:
        log.error("compiling a grammar failed", exc_info=error)
        self._place.throw(EpochOver(f"{self._process.name} failed to compile a grammar: {error!r}"))

    def _record(self) -> RecordFile | None:
        directory = self._process.options.record_dir
        if not directory:
            return None
        record = RecordFile(Path(directory), self._heading, self._rank.recorder)
        self._place.undo.callback(self._end, record.close)
        return record
