"""The sockets to the groups: one ZMQ DEALER to each rank 0, typed messages, no waiting."""

import asyncio
import logging
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from tandem.core.messages import ToGroup, ToRouter, ToRouters, Watch
from tandem.runtime.links import Decoder, Malformed, encode, post

MESSAGE_BYTES = 64 * 1024
"""What a group has to say is far smaller; a bigger frame is dropped before it is decoded."""

POLLIN = int(zmq.POLLIN)
BATCH = 16
"""Frames of one group handled before the loop gets its turn."""

Connect = Callable[[str], "zmq.Socket[bytes]"]
"""Makes a DEALER that is connected to an address."""

log = logging.getLogger("tandem.router")


class _Link:
    """One connection; its monitor tells when it breaks. `hung_up` is called when all that came before was heard.

    The descriptor of a ZMQ socket says only that something has happened since the socket was last used, by whatever
    use. So a look takes all that there is, and every send is followed by a look, as it may have used up the sign.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        hear: Callable[[list[bytes]], None],
        hung_up: Callable[[], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._socket = socket
        self._monitor: zmq.Socket[bytes] = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._hear = hear
        self._hung_up = hung_up
        self._crashed = crashed
        self._broken = False
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Handle | None = None
        self._loop.add_reader(self._socket.fileno(), self._look)
        self._loop.add_reader(self._monitor.fileno(), self._watch)
        self._watch()
        self._soon()

    def send(self, data: bytes) -> bool:
        """False when the queue is full."""
        self._soon()
        return post(self._socket, data)

    def close(self, linger_ms: int) -> None:
        """Nothing is heard from now on."""
        for each in (self._socket, self._monitor):
            self._loop.remove_reader(each.fileno())
        if self._next is not None:
            self._next.cancel()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)

    def _soon(self) -> None:
        """Look once more in this round of the loop."""
        if self._next is None:
            self._next = self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        try:
            self._read()
        except BaseException as bug:  # the loop only logs it
            self._crashed(bug)
            raise

    def _read(self) -> None:
        for _ in range(BATCH):
            if not int(self._socket.getsockopt(zmq.EVENTS)) & POLLIN:  # cheaper than the exception that says so
                break
            self._hear(self._socket.recv_multipart(zmq.NOBLOCK))
            if self._socket.closed:
                return
        else:
            self._soon()
            return
        if self._broken:
            self._broken = False
            self._hung_up()

    def _watch(self) -> None:
        """The socket connects again by itself; but a ROUTER then takes us for somebody else."""
        while True:
            try:
                recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                return
            self._broken = True
            self._soon()


class Upstream:
    """Connections by group name. Lives on the loop's thread.

    `deliver(group, message)` gets what arrives, and `hung_up(group)` is called after its last word; `crashed(error)` is
    told when one of them raised, which is a bug of ours. `cached(group)` says for the next Watch how far the group's
    prefix cache is known; None: nobody wants to know.
    """

    def __init__(
        self,
        connect: Connect,
        deliver: Callable[[str, ToRouter], None],
        hung_up: Callable[[str], None],
        crashed: Callable[[BaseException], None],
        cached: Callable[[str], int | None],
    ) -> None:
        self._connect = connect
        self._deliver = deliver
        self._hung_up = hung_up
        self._crashed = crashed
        self._cached = cached
        self._links: dict[str, _Link] = {}
        self._decode: Decoder[ToRouters] = Decoder(ToRouters)

    def connect(self, group: str, address: str) -> None:
        """Talk to this address from now on, and to no older one."""
        self.drop(group)
        socket = self._connect(address)
        self._links[group] = _Link(
            socket, lambda frames: self._hear(group, frames), lambda: self._hung_up(group), self._crashed
        )
        self.send(group, Watch(self._cached(group)))

    def send(self, group: str, message: ToGroup) -> bool:
        """False when the group is unknown or its queue is full: nothing here ever waits."""
        link = self._links.get(group)
        return link is not None and link.send(encode(message))

    def watch(self) -> None:
        """Once a second: say that this router is there. Rank 0's ROUTER cannot speak first, nor wait for ever."""
        for group in self._links:
            self.send(group, Watch(self._cached(group)))

    def drop(self, group: str) -> None:
        """Close this group's connection, if there is one."""
        link = self._links.pop(group, None)
        if link is not None:
            link.close(0)

    def close(self) -> None:
        """Close every connection. Messages already sent get a moment to leave."""
        for link in self._links.values():
            link.close(500)
        self._links.clear()

    def _hear(self, group: str, frames: list[bytes]) -> None:
        if len(frames) != 1 or len(frames[0]) > MESSAGE_BYTES:
            log.warning("group %s sent %d frames that fit no message", group, len(frames))
            return
        try:
            messages = self._decode(frames[0])
        except Malformed as error:
            log.warning("group %s sent what are no messages: %s", group, error)
            return
        for message in messages:
            self._deliver(group, message)
