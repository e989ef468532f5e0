"""The router's main: two HTTP ports, one loop, and a thread that looks at the registry."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
import uvloop
import zmq
from fastapi import FastAPI
from starlette.types import ASGIApp

from router.admin import build_admin_app
from router.auth import Doors, doors_of, is_loopback
from router.connection import Connection
from router.otlp import Exporter
from router.ports import Members, Model
from router.routes import build_app
from router.service import Rules, Service
from router.tls import tls_of
from router.tracing import Exports
from router.upstream import Connect
from tandem.core.config import RouterOptions
from tandem.core.errors import ConfigError
from tandem.core.members import Member
from tandem.engine.grammar import check
from tandem.engine.model import read_shape
from tandem.engine.tokens import load_tokenizer
from tandem.runtime.directory import directory_of
from tandem.runtime.leash import leash
from tandem.runtime.links import Sockets, read_secret

POLL_S, POLL_UNREADY_S = 1.0, 0.1
DATE_S = 1.0
COLLECT_AFTER = 20_000
"""New objects that are still there: Python's own 700 are those of a few requests."""
STOP_S = 2
"""Time for open answers to end after a signal; the whole stop takes less than 3 s."""

log = logging.getLogger("tandem.router")


@dataclass(frozen=True)
class Parts:
    """What the router does not make itself: chosen once, here in main, and doubles in tests."""

    model: Model
    members: Members
    connector: Callable[["zmq.Context[zmq.Socket[bytes]]"], Connect]
    """Given the router's context, makes what opens a DEALER to an address."""
    doors: Doors = field(default_factory=Doors)
    traces: Exports | None = None  # nobody wants any


def real_parts(options: RouterOptions) -> Parts:
    """The model's tokenizer, the registry, and sockets that prove the cluster's secret. Raises ConfigError."""
    secret = read_secret(options.secret_file)

    def connector(context: "zmq.Context[zmq.Socket[bytes]]") -> Connect:
        sockets = Sockets(context, secret)
        return lambda address: sockets.connect(zmq.DEALER, address, last_words=True)

    directory = directory_of(options, secret)
    shape = read_shape(options.model)
    tokenizer = load_tokenizer(options.model, shape)
    model = Model(options.served_model_name or options.model, shape.vocab, tokenizer, check)
    endpoint = options.frontend.otlp_traces_endpoint
    traces = Exporter(endpoint, f"{socket.gethostname()}:{os.getpid()}") if endpoint else None
    return Parts(model, directory.members, connector, doors_of(options, secret), traces)


class Router:
    """A router in this process. `serve` blocks; `group_lost` and `stop` may be called from any thread, at any time."""

    def __init__(self, options: RouterOptions, parts: Parts, rules: Rules | None = None) -> None:
        self._options = options
        self._parts = parts
        self.rules = rules or rules_of(options)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._early: list[Callable[[], None]] = []
        self._stopping = threading.Event()
        self._tls: ssl.SSLContext | None = None
        self._stop: asyncio.Event
        self._hurry: asyncio.Event
        self._exit_code = 0
        self._poll_s = POLL_UNREADY_S
        self.service: Service

    def serve(self, on_ready: Callable[[str, str], None]) -> int:
        """Serve until told to end, see `stop` and `end`; returns the exit code.

        `on_ready(url, admin_url)` is called on the loop. Signals are only heard on the main thread. Raises ConfigError
        for an address that cannot be bound.
        """
        options = self._options
        self._tls = tls_of(options.frontend)
        with (
            bound(options.host, options.port) as data,
            bound(options.admin_host, options.admin_port, "admin-") as admin,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(self._serve(data, admin, on_ready))
        return self._exit_code

    def group_lost(self, name: str, cause: str) -> None:
        """A supervisor saw one of this group's processes end: its requests fail now, not after a silence."""
        self._call(lambda: self.service.on_lost(name, cause))

    def hear(self, line: str) -> None:
        """A line from the supervisor's pipe: `lost GROUP CAUSE...`. Others are ignored, for those to come."""
        words = line.split(" ", 2)
        if len(words) == 3 and words[0] == "lost":
            self.group_lost(words[1], words[2])

    def stop(self) -> None:
        """Refuse what is new, and end `serve` when what is open has ended, or `drain_s` are over; as a signal does."""
        self._call(self._on_signal)

    def end(self) -> None:
        """End `serve` now, as a second signal does: what is still open ends with an error."""
        self._call(self._on_end)

    def _call(self, action: Callable[[], None]) -> None:
        """Run on the loop's thread: soon, once it runs, or never when it is over."""
        with self._lock:
            if self._loop is None:
                self._early.append(action)
                return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(action)

    async def _serve(self, data: socket.socket, admin: socket.socket, on_ready: Callable[[str, str], None]) -> None:
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        connect = self._parts.connector(context)
        self.service = Service(
            self.rules, self._parts.model, connect, self._crashed, self._parts.doors, self._parts.traces
        )
        admin_tls = None if is_loopback(self._options.admin_host) else self._tls
        urls = (url_of(data, self._tls), url_of(admin, admin_tls))
        servers = [
            _Server(build_app(self.service, self._running), data, self._tls, lifespan="on"),
            _Server(build_admin_app(self.service), admin, admin_tls, lifespan="off"),
        ]
        with self._signals():
            serving = [asyncio.create_task(server.serve(sockets=[server.socket])) for server in servers]
            while not all(server.started for server in servers) and not any(task.done() for task in serving):
                await asyncio.sleep(0.01)
            if all(server.started for server in servers):
                on_ready(*urls)
            await asyncio.wait([asyncio.create_task(self._stop.wait()), *serving], return_when="FIRST_COMPLETED")
            await self._drain()
            for server in servers:
                server.end()
            await asyncio.gather(*serving)
        context.destroy(linger=500)

    async def _drain(self) -> None:
        """Until nothing is open, or nobody waits any more."""
        service, drain_s = self.service, self.rules.drain_s
        service.drain()
        if service.admitted and not self._hurry.is_set():
            log.warning("told to end: %d open requests may finish within %g s", service.admitted, drain_s)
        waiting = [asyncio.create_task(service.idle()), asyncio.create_task(self._hurry.wait())]
        await asyncio.wait(waiting, timeout=drain_s, return_when="FIRST_COMPLETED")
        for task in waiting:
            task.cancel()
        service.end()

    @contextlib.asynccontextmanager
    async def _running(self, app: FastAPI) -> AsyncIterator[None]:
        """The lifespan: from here on the loop takes calls, and the registry is looked at."""
        await self.service.start()
        with self._lock:
            self._loop = asyncio.get_running_loop()
        for action in self._early:
            action()
        poll = threading.Thread(target=self._poll, args=(self._loop,), name="registry", daemon=True)
        poll.start()
        yield
        self._stopping.set()
        await self.service.stop()

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread, as redis calls block. A registry that fails leaves the last known members in place."""
        failing = False
        while not self._stopping.is_set():
            try:
                members = self._parts.members()
            except Exception as error:  # noqa: BLE001  whatever it is, serving what is known is better than ending
                if not failing:
                    log.warning("the registry cannot be read, going on with the last known members: %s", error)
                failing = True
                self.service.metrics.registry.failed()
            else:
                failing = False
                self.service.metrics.registry.read()
                with contextlib.suppress(RuntimeError):  # the loop has just ended
                    loop.call_soon_threadsafe(self._on_members, members)
            self._stopping.wait(self._poll_s)

    def _on_members(self, members: list[Member]) -> None:
        self.service.on_members(members)
        self._poll_s = POLL_S if self.service.ready() else POLL_UNREADY_S

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop the router; a second one ends it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _on_end(self) -> None:
        self._hurry.set()
        self._stop.set()

    def _crashed(self, error: BaseException) -> None:
        """A bug of ours on the way of the tokens: no answer can be trusted to end, so all end now."""
        log.critical("the router cannot go on", exc_info=error)
        self._exit_code = 1
        self._on_end()


class _Server(uvicorn.Server):
    """One port. The signals are the router's, not the server's."""

    def __init__(self, app: ASGIApp, bound_to: socket.socket, tls: ssl.SSLContext | None, lifespan: Any) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan=lifespan,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_S,
            ssl_context_factory=(lambda config, default: tls) if tls is not None else None,
        )
        super().__init__(config)
        self.socket = bound_to
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Stop serving, now."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Once a second is enough for the Date header; uvicorn's own ten looks a second cost an idle router most."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), DATE_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def rules_of(options: RouterOptions) -> Rules:
    """What the operator's choices come to."""
    front = options.frontend
    return Rules(
        max_concurrent_requests=front.max_concurrent_requests,
        queue_size=front.queue_size,
        queue_timeout_s=front.queue_timeout_secs,
        policy=front.policy,
        retries_max=front.retry_max_retries,
        breaker_failures=front.cb_failure_threshold,
        breaker_s=front.cb_timeout_duration_secs,
        request_timeout_s=front.request_timeout_secs,
        max_payload_bytes=front.max_payload_size,
        timer_scale=options.timer_scale,
        drain_s=options.drain_s,
    )


def serve(options: RouterOptions, on_ready: Callable[[str, str], None]) -> int:
    """Run a router of its own until a signal; returns the exit code. Raises ConfigError."""
    router = Router(options, real_parts(options))
    if options.supervised:
        leash(router.hear, router.end)

    def ready(url: str, admin_url: str) -> None:
        settle()
        on_ready(url, admin_url)

    return router.serve(ready)


def settle() -> None:
    """All that was loaded stays: the collector need not look at it again and again, nor at each request's few objects.

    Hardly anything here is a cycle, so what waits for a collection is little.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


@contextlib.contextmanager
def bound(host: str, port: int, flag: str = "") -> Iterator[socket.socket]:
    """A bound TCP socket. Raises ConfigError that names the flags to change; theirs begin with `flag`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        text = f"cannot listen on {host}:{port}: {error.strerror}; choose another --{flag}host or --{flag}port"
        raise ConfigError(text) from None
    with listener:
        yield listener


def url_of(listener: socket.socket, tls: ssl.SSLContext | None) -> str:
    """Where clients find it."""
    scheme = "http" if tls is None else "https"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
