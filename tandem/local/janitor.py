"""Outlives its cluster: once the supervisor is gone, ends what is left of it and removes the run directory.

Run as a file with `python -I -S`, so that it is there within milliseconds: it imports nothing of ours. Standard input
is a socket that brings a pidfd for each process of the cluster; its end is the supervisor's.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import time

GRACE_S = 4.0
"""Longer than the leash gives a process that lost its supervisor to end by itself."""
KILLED_S = 1.0
MAX_FDS = 64


def watch(supervisor: socket.socket) -> list[int]:
    """The pidfds that came until the supervisor ended; those of processes that have ended meanwhile are closed."""
    pidfds: list[int] = []
    with contextlib.suppress(ConnectionResetError):
        while True:
            data, came, _, _ = socket.recv_fds(supervisor, 64, MAX_FDS)
            if not data:
                break
            left = alive(pidfds, 0.0)
            for ended in set(pidfds) - set(left):
                os.close(ended)
            pidfds = left + came
    return pidfds


def alive(pidfds: list[int], timeout_s: float) -> list[int]:
    """Those whose processes have not ended within the time."""
    deadline_s = time.monotonic() + timeout_s
    left = set(pidfds)
    poll = select.poll()
    for pidfd in left:
        poll.register(pidfd, select.POLLIN)
    while left:
        wait_s = deadline_s - time.monotonic()
        for pidfd, _ in poll.poll(max(0.0, wait_s) * 1000):
            poll.unregister(pidfd)
            left.discard(pidfd)
        if wait_s <= 0:
            break
    return sorted(left)


def main(directory: str) -> None:
    """Wait, end what is left, tidy up."""
    with socket.socket(fileno=0) as supervisor:
        pidfds = watch(supervisor)
    left = alive(pidfds, GRACE_S)
    for pidfd in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    alive(left, KILLED_S)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    main(sys.argv[1])
