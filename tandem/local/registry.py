"""The registry of a local cluster: one of its own, or the operator's."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

from tandem.core.members import Member
from tandem.local.run_directory import RunDirectory
from tandem.runtime.embedded import EmbeddedRegistry
from tandem.runtime.registry import Registry


@contextlib.contextmanager
def running_registry(url: str, run_directory: RunDirectory) -> Iterator[tuple[str, dict[str, int]]]:
    """Its URL, and pidfds to watch by title: those of an embedded server, unless there is a URL."""
    if url:
        yield url, {}
        return
    server = EmbeddedRegistry(run_directory.path)
    pidfd = os.pidfd_open(server.pid)
    try:
        run_directory.end_with_us(pidfd)
        yield server.url, {f"the embedded registry (pid {server.pid})": pidfd}
    finally:
        os.close(pidfd)
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
            raise ConnectionError(str(error)) from error

    return read
