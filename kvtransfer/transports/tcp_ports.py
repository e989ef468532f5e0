"""The TCP sockets that a native library has open in this process, by their port: it does not hand them out itself."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator

_INTERNET = (socket.AF_INET, socket.AF_INET6)
_LOOK_UP = struct.pack("@ll", 0, 5000)
"""5 ms, as a timeval."""


def listening() -> set[int]:
    """The ports that this process listens on."""
    found = set()
    for one in _sockets():
        with one:
            if _listens(one):
                found.add(one.getsockname()[1])
    return found


def hurry(port: int, patience_s: float) -> None:
    """Make whoever accepts connections at a port of ours look up often, from `patience_s` on: then this returns."""
    for one in _at(port):
        with one:
            if _listens(one):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LOOK_UP)
    time.sleep(patience_s)


def hang_up(port: int) -> None:
    """End the connections that a port of ours has taken."""
    for one in _at(port):
        with one, contextlib.suppress(OSError):  # it has ended itself
            if not _listens(one):
                one.shutdown(socket.SHUT_RDWR)


def _listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _at(port: int) -> Iterator[socket.socket]:
    for one in _sockets():
        if one.getsockname()[1] == port:
            yield one
        else:
            one.close()


def _sockets() -> Iterator[socket.socket]:
    """Second handles, so that none is closed and used for something else meanwhile."""
    for name in os.listdir("/proc/self/fd"):
        try:
            handle = os.dup(int(name))
        except OSError:
            continue  # closed since
        try:
            one = socket.socket(fileno=handle)
        except OSError:
            os.close(handle)  # no socket
            continue
        if one.family in _INTERNET and one.type is socket.SOCK_STREAM:
            yield one
        else:
            one.close()
