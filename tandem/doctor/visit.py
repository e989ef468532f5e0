"""Visits: this host with another, from either end, or with itself."""

import contextlib
import multiprocessing
import signal
import tempfile
from collections.abc import Iterator

from tandem.doctor.checks import size
from tandem.doctor.end import End
from tandem.doctor.facts import Facts
from tandem.doctor.link import HANDSHAKE_S, NAME, Caller, Listener, Lost, opened, reach
from tandem.doctor.obey import obey
from tandem.doctor.options import DoctorOptions, Place, parse_place
from tandem.doctor.pair import examine
from tandem.doctor.report import Finding, fail, note, ok
from tandem.doctor.trials import try_port, try_registry
from tandem.doctor.words import Tell, Told
from tandem.runtime.links import check_where, read_secret, tcp_address

HOME = "127.0.0.1"
START_S = 60.0
"""Until a second process of this host has imported everything."""


def visit(options: DoctorOptions, facts: Facts) -> Iterator[Finding]:
    """All findings beyond this host's facts, as they come. Raises ConfigError at once for what cannot work."""
    secret = read_secret(options.secret_file)
    if options.listen is not None:
        place = parse_place("--listen", options.listen)
        check_where(place[0])
        return heard(options, secret, listen(place, options, facts, secret))
    if options.connect is not None:
        return heard(options, secret, connect(parse_place("--connect", options.connect), options, facts, secret))
    return heard(options, secret, alone(options, facts))


def heard(options: DoctorOptions, secret: bytes, visited: Iterator[Finding]) -> Iterator[Finding]:
    """The registry's part and the other end's, or why there is none."""
    if options.registry_url:
        yield try_registry(options.registry_url, options.cluster, secret)
    try:
        yield from visited
    except Lost as lost:
        yield fail("peer", str(lost))


def listen(place: Place, options: DoctorOptions, facts: Facts, secret: bytes) -> Iterator[Finding]:
    """Wait for another host, and do what it asks. Raises ConfigError or Lost."""
    host, port = place
    with opened(secret) as sockets, contextlib.closing(Listener(sockets, host, port)) as listener:
        yield try_port(host)
        end = end_at(host, options, facts)
        yield judge_transport(end)
        note(f"waits {options.wait_s:g} s for `tandem doctor --connect {options.listen}` on another host")
        listener.open(options.wait_s)
        yield from obey(listener, end)


def connect(place: Place, options: DoctorOptions, facts: Facts, secret: bytes) -> Iterator[Finding]:
    """Reach the host that listens, and ask it. Raises Lost."""
    host, port = place
    here, there = reach(host, port, options.wait_s)
    yield try_port(here)
    end = end_at(here, options, facts)
    yield judge_transport(end)
    with opened(secret) as sockets:
        yield from converse(Caller(sockets, tcp_address(there, port), f"{host}:{port}"), end, HANDSHAKE_S)


def alone(options: DoctorOptions, facts: Facts) -> Iterator[Finding]:
    """With a second process on this host. Raises Lost."""
    yield try_port(HOME)
    end = end_at(HOME, options, facts)
    yield judge_transport(end)
    with (
        tempfile.TemporaryDirectory(prefix="tandem-") as directory,
        second_process(directory, options, facts),
        opened(b"") as sockets,
    ):
        yield from converse(Caller(sockets, f"ipc://{directory}/{NAME}", "a second process"), end, START_S)


def converse(caller: Caller, end: End, handshake_s: float) -> Iterator[Finding]:
    """Ask everything, and tell the listener what came of it, or why it ends early. Raises Lost."""
    told: list[Finding] = []
    left = "it was interrupted"
    with contextlib.closing(caller):
        try:
            caller.open(handshake_s)
            for finding in examine(caller, end):
                told.append(finding)
                yield finding
            caller.ask(Tell(tuple(told)), Told)
            left = ""
        except Lost as lost:
            left = str(lost)
            raise
        finally:
            caller.leave(left)


def end_at(host: str, options: DoctorOptions, facts: Facts) -> End:
    """This process's, with its transport started."""
    python = ".".join(str(part) for part in facts.python)
    versions = {"python": python, **facts.packages, **facts.mooncake}
    return End(host, options.transport_protocol, options.transport_device, versions, facts.ports)


def judge_transport(end: End) -> Finding:
    """Whether Mooncake runs here, with the protocol that was asked for."""
    if end.card.hello is None:
        return fail("transport", end.card.trouble)
    hello = end.card.hello
    return ok("transport", f"{hello.transport} at {hello.endpoint}, {size(hello.region.bytes)} registered")


@contextlib.contextmanager
def second_process(directory: str, options: DoctorOptions, facts: Facts) -> Iterator[None]:
    """Listens in the directory; spawned, as Mooncake does not survive a fork."""
    process = multiprocessing.get_context("spawn").Process(target=second, args=(directory, options, facts))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def second(directory: str, options: DoctorOptions, facts: Facts) -> None:
    """The second process: what it finds, the first one says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first one ends it
    end = end_at(HOME, options, facts)
    with (
        contextlib.suppress(Lost),
        opened(b"") as sockets,
        contextlib.closing(Listener(sockets, directory)) as listener,
    ):
        listener.open(START_S)
        obey(listener, end)
