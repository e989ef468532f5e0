"""The registry of a local cluster: one of its own, or the operator's."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from tandem.core.members import Member
from tandem.local.kept import Kept, Process
from tandem.local.liveness import Question, registry_question
from tandem.local.run_directory import RunDirectory
from tandem.runtime.embedded import EmbeddedRegistry
from tandem.runtime.registry import Registry, redacted

REGISTRY = "registry"
TITLE = "the embedded registry"
CURE = "start it or correct --registry-url; without that flag the cluster runs its own"


class ServerProcess:
    """The embedded server as a process to watch."""

    def __init__(self, server: EmbeddedRegistry) -> None:
        self._server = server
        self.pid = server.pid
        self.pidfd = os.pidfd_open(self.pid)

    def send(self, number: signal.Signals) -> None:
        """A signal, unless it has ended."""
        self._server.send(number)

    def reap(self) -> int:
        """Its exit status, once it has ended; negative: the signal that ended it."""
        return self._server.reap()

    def close(self) -> None:
        """Give back the pidfd."""
        os.close(self.pidfd)


@dataclass(frozen=True)
class Running:
    """Where the registry is, and how the cluster's own one is kept running, and asked whether it lives."""

    url: str
    kept: Kept | None = None
    question: Question | None = None


@contextlib.contextmanager
def running_registry(url: str, run_directory: RunDirectory) -> Iterator[Running]:
    """An embedded server that answers, unless there is a URL."""
    if url:
        yield Running(url)
        return
    server = EmbeddedRegistry(run_directory.path)
    first: list[Process] = [ServerProcess(server)]

    def make() -> Process:
        """The first time it runs already."""
        if first:
            return first.pop()
        server.restart()
        return ServerProcess(server)

    try:
        yield Running(server.url, Kept(REGISTRY, TITLE, make), registry_question(str(server.path)))
    finally:
        server.stop()


def members_reader(url: str, cluster: str, secret_file: Path) -> Callable[[], list[Member]]:
    """For one thread: who is registered. It raises OSError while the registry is away.

    Raises ConfigError for an unusable URL.
    """
    known = Registry(url, cluster, secret_file.read_bytes())

    def read() -> list[Member]:
        try:
            return known.members()
        except redis.RedisError as error:
            raise ConnectionError(f"{redacted(url)} does not answer: {error}; {CURE}") from error

    return read
