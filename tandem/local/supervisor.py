"""Starts the processes of a local cluster, waits until they serve, and ends all of them together."""

import enum
import json
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from tandem.local.child import Child, Command, describe_end
from tandem.local.readiness import Readiness, Ready, Waiting, Word
from tandem.local.screen import Screen
from tandem.local.signals import Wakeup

ROUTER = "router"
READY = b"READY "
"""How the router says that it listens, with its URLs in JSON."""

READY_S = 180.0
TOLD_S = 0.5
"""For the router to answer the requests of a lost group, before everything ends."""
END_S = 3.0
"""From SIGTERM to SIGKILL."""
REPEAT_S = 0.5
"""A signal that comes again within this time is the same one, sent to us and to our process group."""


class Phase(enum.Enum):
    """It only goes forward."""

    STARTING = 1
    SERVING = 2
    TELLING = 3  # a rank has died, the router tells its clients
    ENDING = 4  # SIGTERM has been sent
    KILLING = 5  # SIGKILL has been sent


class Supervisor:
    """Runs commands until a signal, or until one of them ends. All of it happens in one loop that only waits."""

    def __init__(
        self,
        commands: Sequence[Command],
        readiness: Readiness,
        screen: Screen,
        *,
        watched: Mapping[str, int] = MappingProxyType({}),
        started: Callable[[int], None] = lambda pidfd: None,
    ) -> None:
        """`watched` has pidfds, by title, of processes that others started. `started` hears each child's pidfd."""
        self._commands = commands
        self._readiness = readiness
        self._screen = screen
        self._watched = watched
        self._started = started
        self._children: list[Child] = []
        self._pids: dict[str, int] = {}
        self._urls: dict[str, str] = {}
        self._phase = Phase.STARTING
        self._missing = "its processes"
        self._deadline_s: float | None = None
        self._ending_s = 0.0
        self._status = 0
        self._selector = selectors.DefaultSelector()

    def run(self, wakeup: Wakeup[Word]) -> int:
        """Until everything has ended; returns the exit status."""
        self._wait_for(wakeup.fd, lambda: self._on_wakeup(wakeup))
        for title, pidfd in self._watched.items():
            self._wait_for(pidfd, partial(self._on_watched, title, pidfd))
        self._deadline_s = time.monotonic() + READY_S
        try:
            for command in self._commands:
                self._start(command)
            self._readiness.start(wakeup.put)
            while self._children:
                self._round(wakeup.fd)
        finally:
            self._readiness.stop()
            for child in list(self._children):  # only when something of ours failed
                child.send(signal.SIGKILL)
                self._release(child)
            self._selector.close()
            self._screen.close()
        return self._status

    def _wait_for(self, fd: int, act: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, act)

    def _start(self, command: Command) -> None:
        child = Child(command)
        self._children.append(child)
        self._pids[command.name] = child.pid
        self._started(child.pidfd)
        self._wait_for(child.pidfd, partial(self._on_exit, child))
        self._wait_for(child.output, partial(self._on_output, child))

    def _round(self, first: int) -> None:
        """Signals come first: a process that got the same one must not be taken for the cause."""
        left_s = None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
        happened = self._selector.select(left_s)
        for key, _ in sorted(happened, key=lambda event: event[0].fd != first):
            if key.fd in self._selector.get_map():  # an earlier one of this round may have closed it
                key.data()
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            self._on_deadline()

    # what happens

    def _on_wakeup(self, wakeup: Wakeup[Word]) -> None:
        signals, words = wakeup.take()
        for number in signals:
            self._on_signal(number)
        for word in words:
            self._on_word(word)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._phase in (Phase.STARTING, Phase.SERVING, Phase.TELLING):
            self._screen.notice(f"{number.name}: ending {len(self._children)} processes")
            self._end()
        elif self._phase is Phase.ENDING and time.monotonic() > self._ending_s + REPEAT_S:
            self._kill()

    def _on_word(self, word: Word) -> None:
        if self._phase is not Phase.STARTING:
            return
        match word:
            case Waiting(missing):
                self._missing = missing
                self._screen.waiting(missing)
            case Ready(http):
                self._phase, self._deadline_s = Phase.SERVING, None
                self._screen.ready({**self._urls, "pids": self._pids, "http": http})

    def _on_output(self, child: Child) -> None:
        for line in child.read():
            if child.command.name == ROUTER and line.startswith(READY) and not self._urls:
                self._urls = json.loads(line.removeprefix(READY))
                self._readiness.router_at(self._urls["admin_url"])
            else:
                self._screen.line(line)
        if child.silent:
            self._selector.unregister(child.output)

    def _on_exit(self, child: Child) -> None:
        if not child.silent:
            self._on_output(child)
        how = describe_end(self._release(child))
        command, phase = child.command, self._phase
        if phase in (Phase.STARTING, Phase.SERVING):
            last_words = f": {child.last_line}" if child.last_line and how.startswith("exited") else ""
            self._screen.notice(f"{command.title} (pid {child.pid}) {how}{last_words}")
            self._status = 1
        router = next((other for other in self._children if other.command.name == ROUTER), None)
        if phase is Phase.SERVING and router is not None:
            for other in self._children:  # the router tells its clients; ranks that are stopped next leave a dump
                other.tell(f"lost {command.group} {command.member} {how}")
            self._phase, self._deadline_s = Phase.TELLING, time.monotonic() + TOLD_S
        elif phase in (Phase.STARTING, Phase.SERVING) or (phase is Phase.TELLING and router is None):
            self._end()

    def _on_watched(self, title: str, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        if self._phase is Phase.SERVING:
            self._screen.notice(f"{title} has ended: what is known stays in use, nobody new can join")
        elif self._phase is Phase.STARTING:
            self._screen.notice(f"{title} has ended")
            self._status = 1
            self._end()

    def _on_deadline(self) -> None:
        match self._phase:
            case Phase.STARTING:
                self._screen.notice(f"not ready after {READY_S:.0f} s: waiting for {self._missing}")
                self._status = 1
                self._end()
            case Phase.TELLING:
                self._end()
            case Phase.ENDING:
                self._kill()
            case Phase.SERVING | Phase.KILLING:
                raise AssertionError("this phase has no deadline")

    # what is done about it

    def _end(self) -> None:
        self._phase, self._ending_s = Phase.ENDING, time.monotonic()
        self._deadline_s = self._ending_s + END_S
        for child in self._children:
            child.send(signal.SIGTERM)

    def _kill(self) -> None:
        self._phase, self._deadline_s = Phase.KILLING, None
        for child in self._children:
            self._screen.notice(f"killing {child.command.title} (pid {child.pid})")
            child.send(signal.SIGKILL)

    def _release(self, child: Child) -> int:
        """The child has ended, or was sent SIGKILL: its exit status."""
        status = child.reap()
        if not child.silent:
            self._selector.unregister(child.output)
        self._selector.unregister(child.pidfd)
        child.close()
        self._children.remove(child)
        return status
