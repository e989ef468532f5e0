"""One rank's process, from its options to its end: it loads its weights once, and serves one epoch after another."""

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import NoReturn

import msgspec

from tandem.core.config import RankOptions
from tandem.core.ends import EndKind
from tandem.core.errors import ConfigError, Divergence
from tandem.core.ids import RequestId
from tandem.core.members import Member
from tandem.runtime.directory import directory_of
from tandem.runtime.endings import EXIT_UNUSABLE, EpochOver, Stopped, Unusable
from tandem.runtime.exposition import Gauge
from tandem.runtime.gauges import exposition_of, gauges_of, gauges_without
from tandem.runtime.health import UNAVAILABLE, Answers, Health, Reply, State
from tandem.runtime.incarnation import Incarnation
from tandem.runtime.leash import leash
from tandem.runtime.links import check_where, read_secret
from tandem.runtime.registry import RegistryLoop
from tandem.runtime.resources import Past, Process, Resources, load_resources
from tandem.runtime.state import describe, timelines
from tandem.runtime.tally import Tally

log = logging.getLogger("tandem")

EXIT_STATUS: dict[type[Exception], int] = {ConfigError: 2, Unusable: EXIT_UNUSABLE}
"""Of a rank: bad options; another process has its place, its engine is broken, or it hangs."""
EXIT_BUG = 1
OWN_THREADS = ("registry", "health", "leash")
"""They live as long as the process: it cannot go on without one."""


class Stage:
    """What lives as long as the process, and what its health port, the registry and signals have to do with."""

    def __init__(self, options: RankOptions) -> None:
        self.options = options
        self._name = f"{options.group.name} rank {options.rank}"
        self._boot_ms = time.time_ns() // 1_000_000
        self._tally = Tally(options.group, options.rank)
        self._exposition = exposition_of(options.group, options.rank, self._tally)
        self._rendering = threading.Lock()
        self._members: list[Member] = []
        self._entry = b""  # what peers are told, where there is no registry
        self._resources: Resources | None = None  # until they are loaded
        self._incarnation: Incarnation | None = None  # None: until the next one is made
        self._told = 0  # how often it was told to end
        self._fatal: Exception | None = None
        self._past = Past()

    def run(self) -> None:
        """Until it is told to end. Raises ConfigError or Unusable."""
        options = self.options
        with contextlib.ExitStack() as undo, contextlib.suppress(Stopped):
            answers = Answers(self._ask, self._timelines, self._metrics, lambda: self._entry)
            health = Health(options.http_host, options.http_port, answers)
            undo.callback(health.close)
            secret = read_secret(options.secret_file)
            check_where(options.bind or options.run_dir)
            directory = directory_of(options, secret, self._show)
            self._resources = load_resources(options)
            process = Process(options, self._resources, secret, health.address, self._boot_ms, self._tally)
            log.info("%s has loaded its layers", self._name)
            loop = RegistryLoop(directory, self._on_members, self._on_replaced)
            loop.start()
            undo.callback(loop.stop)
            while True:
                self._live(process, loop)
                gc.collect()  # what an incarnation had mapped goes now

    def _live(self, process: Process, loop: RegistryLoop) -> None:
        """One incarnation. Raises what ends the process with it."""
        incarnation = Incarnation(process, self._past, loop.show, lambda: self._members)
        self._incarnation = incarnation
        if self._fatal is not None:
            raise self._fatal
        incarnation.leave(self._told)
        try:
            incarnation.run()
        except (Stopped, Unusable, ConfigError):
            raise
        except (EpochOver, Divergence) as error:
            cause = str(error)
        except Exception as error:
            if incarnation.formed is None:
                raise  # it would happen again at once
            log.exception("a bug of ours")
            cause = repr(error)
        self._past, self._incarnation = incarnation.past, None
        if self._told:
            raise Stopped
        log.info("%s forms its ring again, after: %s", self._name, cause)

    # what others have to say

    def stop(self) -> None:
        """A signal's handler. The first time: leave the group in order; the second time: end at once."""
        self._told += 1
        if self._incarnation is not None:
            self._incarnation.leave(self._told)

    def let_go(self) -> None:
        """On the leash's thread: the supervisor has gone, and nobody waits for us."""
        self._throw(Stopped())

    def on_word(self, line: str) -> None:
        """On the leash's thread: `lost GROUP rank N HOW`. The supervisor knows of it before a heartbeat is missed."""
        match line.split(" ", 4):
            case ["lost", group, "rank", number, how] if group == self.options.group.name:
                if self._incarnation is not None and self._incarnation.serving:
                    self._incarnation.throw(EpochOver(f"{group} rank {number} {how}", EndKind.DIED))
            case _:
                pass

    def on_thread_death(self, death: threading.ExceptHookArgs) -> None:
        """Any thread's: what it did would never be done again, and nobody would know."""
        name = death.thread.name if death.thread is not None else "?"
        error = death.exc_value
        log.error("thread %s died", name, exc_info=error)
        cause = f"thread {name} of {self._name} died: {error!r}"
        if name in OWN_THREADS:
            self._throw(Unusable(cause))
        elif self._incarnation is not None:
            self._incarnation.throw(EpochOver(cause))

    def _on_members(self, members: list[Member]) -> None:
        """On the registry's thread."""
        self._members = members
        if self._incarnation is not None:
            self._incarnation.meet(members)

    def _on_replaced(self, other: Member) -> None:
        """On the registry's thread: who was started later stays."""
        text = f"another process has taken the place of {self._name}: it serves /state on {other.http}"
        self._throw(Unusable(text, EndKind.REPLACED))

    def _throw(self, error: Exception) -> None:
        """End the process with this."""
        self._fatal = self._fatal or error
        if self._incarnation is not None:
            self._incarnation.throw(error)

    def _show(self, entry: bytes) -> None:
        """On the registry's thread."""
        self._entry = entry

    # what the health port asks, on threads of its own

    def _ask(self, timeout_s: float) -> State | None:
        """The tick loop's state, or what it takes until there is one."""
        incarnation = self._incarnation
        state: State | None = None
        if incarnation is not None and incarnation.serving:
            state = incarnation.ask(describe, timeout_s)
        if state is None:
            if incarnation is not None and incarnation.serving:
                return None
            group, rank = self.options.group.name, self.options.rank
            state = {"ready": False, "waiting_for": self._waiting_for, "group": group, "rank": rank}
        past = self._past if incarnation is None else incarnation.past
        engine = self._resources.chosen.told if self._resources is not None else {}
        facts = {"loaded": self._resources is not None, "epochs": past.epochs, "last_end": past.last_end.cause or None}
        return state | facts | engine

    def _timelines(self, rid: RequestId | None, timeout_s: float, since_us: int) -> Reply | None:
        """An overview of the newest rooms that have changed since then, or all about one request."""
        incarnation = self._incarnation
        if incarnation is None or not incarnation.serving:
            return UNAVAILABLE, msgspec.json.encode({"error": f"not ready: waiting for {self._waiting_for}"})
        return incarnation.ask(partial(timelines, rid, since_us), timeout_s)

    def _metrics(self, timeout_s: float) -> bytes:
        """Without what only the tick loop knows, if it does not say."""
        incarnation = self._incarnation
        gauges: list[Gauge] | None = None
        if incarnation is not None and incarnation.serving:
            gauges = incarnation.ask(gauges_of, timeout_s)
        with self._rendering:
            return self._exposition.render([*gauges_without(self._tally, formed=gauges is not None), *(gauges or ())])

    @property
    def _waiting_for(self) -> str:
        incarnation = self._incarnation
        if incarnation is not None:
            return incarnation.waiting_for
        return "its engine" if self._resources is None else "the other ranks of its ring"


def serve(options: RankOptions) -> NoReturn:
    """Run one rank until SIGTERM or SIGINT, and end the process.

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
        leash(stage.on_word, stage.let_go)
    try:
        stage.run()
    except (ConfigError, Unusable) as error:
        log.error("%s", error)
        return EXIT_STATUS[type(error)]
    except Exception:
        log.exception("a bug of ours")
        return EXIT_BUG
    return 0
