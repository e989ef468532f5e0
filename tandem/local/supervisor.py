"""Starts the processes of a local cluster, starts again whatever ends, and ends all of them together."""

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

from tandem.core.commands import LOADED
from tandem.core.config import DRAIN_S
from tandem.core.tables import follow
from tandem.local.child import Child, Command, describe_end
from tandem.local.kept import Kept
from tandem.local.liveness import Liveness, http_question
from tandem.local.loop import Loop, Timer
from tandem.local.phases import NEXT, UP, Input, Phase
from tandem.local.readiness import Expected, Look, Readiness
from tandem.local.registry import REGISTRY, Running
from tandem.local.screen import Screen
from tandem.local.signals import Wakeup

ROUTER = "router"
READY = b"READY "
"""How the router says that it listens, with its URLs in JSON."""

READY_S = 180.0
END_S = 3.0
"""From SIGTERM to SIGKILL; beyond the drain, for the router to tell those that it could not finish."""
REPEAT_S = 0.5
"""A signal that comes again within this time is the same one, sent to us and to our process group."""


class Supervisor:
    """Keeps processes running until a signal. All of it happens in one loop that only waits."""

    def __init__(
        self,
        commands: Sequence[Command],
        readiness: Readiness,
        screen: Screen,
        *,
        registry: Running | None = None,
        started: Callable[[int], None] = lambda pidfd: None,
        again: Callable[[Command, Mapping[str, str]], Command] = lambda command, urls: command,
        drain_s: float = DRAIN_S,
        timer_scale: float = 1.0,
    ) -> None:
        """`started` hears each process's pidfd. `again` is how a command is given again, once the router has URLs."""
        self._commands = {command.name: command for command in commands}
        self._readiness = readiness
        self._screen = screen
        self._registry = registry
        self._started = started
        self._again = again
        self._drain_s = drain_s
        self._kept = {
            command.name: Kept(command.name, command.title, partial(self._make, command)) for command in commands
        }
        if registry is not None and registry.kept is not None:
            self._kept[REGISTRY] = registry.kept
        self._urls: dict[str, str] = {}
        self._listening = False  # the router that runs now
        self._revision = 0
        self._phase = Phase.STARTING
        self._missing = "its processes"
        self._recovering = True  # until it is said that the cluster serves
        self._deadline: Timer | None = None
        self._asked_s = float("-inf")
        self._status = 0
        self._loop = Loop()
        self._liveness = Liveness(self._loop, self._on_hung, timer_scale)

    def run(self, wakeup: Wakeup[Look]) -> int:
        """Until everything has ended; returns the exit status."""
        self._loop.watch_first(wakeup.fd, lambda: self._on_wakeup(wakeup))
        self._by(READY_S)
        try:
            for kept in self._kept.values():
                self._start(kept)
            self._expect()
            self._readiness.start(wakeup.put)
            self._liveness.start()
            while self._phase in UP or self._children():
                self._loop.round()
        finally:
            self._readiness.stop()
            self._liveness.stop()
            for child in self._children():  # only when something of ours failed
                child.send(signal.SIGKILL)
            for kept in self._kept.values():
                if isinstance(kept.process, Child):
                    self._release(kept)
            self._loop.close()
            self._screen.close()
        return self._status

    def _children(self) -> list[Child]:
        """Those that run; the registry ends after them."""
        return [kept.process for kept in self._kept.values() if isinstance(kept.process, Child)]

    def _make(self, command: Command) -> Child:
        return Child(self._again(command, self._urls) if self._urls else command)

    def _start(self, kept: Kept) -> None:
        kept.timer = None
        process = kept.start()
        self._started(process.pidfd)
        self._loop.watch(process.pidfd, partial(self._on_exit, kept))
        if isinstance(process, Child):
            self._loop.watch(process.output, partial(self._on_output, process))
        self._liveness.watch(kept.name)
        if kept.name == REGISTRY and self._registry is not None and self._registry.question is not None:
            self._liveness.answers_at(kept.name, self._registry.question)

    def _expect(self) -> None:
        """What runs has changed: what was found out before is out of date."""
        self._revision += 1
        running = {name: kept.started_ms for name, kept in self._kept.items() if kept.process is not None}
        self._readiness.expect(Expected(self._revision, running, self._urls["admin_url"] if self._listening else ""))

    # what happens

    def _on_wakeup(self, wakeup: Wakeup[Look]) -> None:
        signals, looks = wakeup.take()
        for number in signals:
            self._on_signal(number)
        for look in looks:
            self._on_look(look)

    def _on_signal(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if now_s < self._asked_s + REPEAT_S:
            return
        self._asked_s = now_s
        if self._phase is Phase.SERVING:
            patience = f"open requests may finish within {self._drain_s:g} s, a second signal ends them"
            self._screen.notice(f"{number.name}: {patience}")
        elif self._phase in (Phase.STARTING, Phase.DRAINING, Phase.LEAVING):
            self._screen.notice(f"{number.name}: ending {len(self._children())} processes")
        self._follow(Input.STOP)

    def _on_look(self, look: Look) -> None:
        if look.revision != self._revision or self._phase not in UP:
            return
        for name, address in look.http.items():
            self._liveness.answers_at(name, http_question(address))
        if look.missing:
            if self._recovering and look.missing != self._missing:
                self._screen.waiting(look.missing)
            self._missing = look.missing
        elif self._recovering:
            self._recovering, self._missing = False, ""
            facts = {**self._urls, "pids": self._pids(), "http": dict(look.http)}
            if self._phase is Phase.STARTING:
                self._screen.ready(facts)
                self._follow(Input.READY)
            else:
                self._screen.ready_again(facts)

    def _on_output(self, child: Child) -> None:
        for line in child.read():
            if child.command.name == ROUTER and line.startswith(READY) and not self._listening:
                self._urls = json.loads(line.removeprefix(READY))
                self._listening = True
                self._liveness.answers_at(ROUTER, http_question(urlsplit(self._urls["admin_url"]).netloc))
                self._expect()
            elif line.startswith(LOADED.encode()):
                self._screen.loaded(child.command.name, *map(int, line.split()[1:3]))
            else:
                self._screen.line(line)
        if child.silent:
            self._loop.forget(child.output)

    def _on_exit(self, kept: Kept) -> None:
        process = kept.process
        assert process is not None
        last_words = ""
        if isinstance(process, Child):
            if not process.silent:
                self._on_output(process)
            last_words = f": {process.last_line}" if process.last_line else ""
        status = self._release(kept)
        how = describe_end(status)
        ended = f"(pid {process.pid}) {how}{last_words if status > 0 else ''}"
        self._tell_lost(kept, how)
        if self._phase is Phase.STARTING:
            self._screen.notice(f"{kept.title} {ended}")
            self._status = 1
            self._follow(Input.LOST)
        elif self._phase is Phase.SERVING:
            self._recover(kept, ended)
        elif self._phase is Phase.DRAINING and kept.name == ROUTER:
            self._follow(Input.ROUTER_GONE)

    def _on_hung(self, name: str, patience_s: float) -> None:
        kept = self._kept[name]
        if kept.process is not None:
            what = f"has not answered for {patience_s:g} s: killing it"
            self._screen.notice(f"{kept.title} (pid {kept.process.pid}) {what}")
            kept.process.send(signal.SIGKILL)

    def _on_late(self) -> None:
        self._deadline = None
        if self._phase is Phase.STARTING:
            self._screen.notice(f"not ready after {READY_S:.0f} s: waiting for {self._missing}")
            self._status = 1
        self._follow(Input.LATE)

    # what is done about it

    def _follow(self, happened: Input) -> None:
        self._phase = follow(NEXT, self._phase, happened, "the supervisor")
        match self._phase:
            case Phase.SERVING:
                self._by(None)
            case Phase.DRAINING:
                self._drain()
            case Phase.LEAVING:
                self._send_all(signal.SIGTERM)
            case Phase.ENDING:
                self._end()
            case Phase.KILLING:
                self._kill()
            case Phase.STARTING:
                raise AssertionError("a cluster starts once")

    def _recover(self, kept: Kept, ended: str) -> None:
        delay_s = kept.delay_s()
        when = f" in {delay_s:g} s" if delay_s else ""
        self._screen.notice(f"{kept.title} {ended}; starting it again{when}")
        self._recovering = True
        kept.timer = self._loop.later(delay_s, partial(self._start_again, kept))
        self._expect()

    def _start_again(self, kept: Kept) -> None:
        try:
            self._start(kept)
        except OSError as error:
            self._recover(kept, f"cannot be started: {error}")
        else:
            self._expect()

    def _tell_lost(self, kept: Kept, how: str) -> None:
        """The router fails over at once, and so do the other ranks of its group."""
        command = self._commands.get(kept.name)
        if command is not None and command.group and self._phase in (Phase.SERVING, Phase.DRAINING):
            for child in self._children():
                child.tell(f"lost {command.group} {command.member} {how}")

    def _drain(self) -> None:
        """Nothing is started any more. The router may be silent while it finishes what is open."""
        self._by(self._drain_s + END_S)
        for kept in self._kept.values():
            if kept.timer is not None:
                self._loop.cancel(kept.timer)
                kept.timer = None
        self._liveness.forget(ROUTER)
        router = self._kept[ROUTER].process
        if router is None:
            self._follow(Input.ROUTER_GONE)
        else:
            router.send(signal.SIGTERM)

    def _end(self) -> None:
        self._asked_s = time.monotonic()
        self._by(END_S)
        self._send_all(signal.SIGTERM)

    def _kill(self) -> None:
        self._by(None)
        for child in self._children():
            self._screen.notice(f"killing {child.command.title} (pid {child.pid})")
            child.send(signal.SIGKILL)

    def _send_all(self, number: signal.Signals) -> None:
        for child in self._children():
            child.send(number)

    def _by(self, delay_s: float | None) -> None:
        """How long this phase may take from now on, instead of what was said before."""
        if self._deadline is not None:
            self._loop.cancel(self._deadline)
        self._deadline = None if delay_s is None else self._loop.later(delay_s, self._on_late)

    def _release(self, kept: Kept) -> int:
        """The process has ended, or was sent SIGKILL: its exit status."""
        process = kept.process
        assert process is not None
        status = process.reap()
        self._liveness.forget(kept.name)
        if isinstance(process, Child) and not process.silent:
            self._loop.forget(process.output)
        self._loop.forget(process.pidfd)
        process.close()
        kept.process = None
        if kept.name == ROUTER:
            self._listening = False
        return status

    def _pids(self) -> dict[str, int]:
        return {name: kept.process.pid for name, kept in self._kept.items() if kept.process is not None}
