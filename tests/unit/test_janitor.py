"""What the janitor of a run directory remembers; that it ends what is left is told in test_supervisor."""

import os
import socket
import subprocess

from tandem.local.janitor import watch


def test_processes_that_have_ended_are_forgotten_however_many_there_were():
    """A cluster that starts them again for weeks must not use up its janitor's file descriptors."""
    here, there = socket.socketpair()
    with subprocess.Popen(["sleep", "1000"]) as last, here, there:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with subprocess.Popen(["true"]) as process:
                pidfd = os.pidfd_open(process.pid)
            socket.send_fds(here, [b"."], [pidfd])
            os.close(pidfd)
        pidfd = os.pidfd_open(last.pid)
        socket.send_fds(here, [b"."], [pidfd])
        os.close(pidfd)
        here.shutdown(socket.SHUT_WR)
        left = watch(there)
        assert len(os.listdir("/proc/self/fd")) == before + len(left)
        last.kill()
    assert len(left) <= 2, "the last one, and who ended just before it"
    for pidfd in left:
        os.close(pidfd)
