"""The sockets to the groups: one ZMQ DEALER to each rank 0, typed messages, no waiting."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from tandem.core.messages import ToGroup, ToRouter, Watch
from tandem.runtime.links import Decoder, Malformed, encode

MESSAGE_BYTES = 64 * 1024
"""What a group has to say is far smaller; a bigger frame is dropped before it is decoded."""

BATCH = 64
"""Messages of one group handled before the loop gets its turn."""

log = logging.getLogger("tandem.router")


@dataclass(frozen=True)
class _Link:
    """One connection. Its monitor tells when it breaks."""

    socket: zmq.asyncio.Socket
    monitor: zmq.asyncio.Socket
    tasks: tuple[asyncio.Task[None], ...]

    def close(self, linger_ms: int) -> None:
        for task in self.tasks:
            task.cancel()
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)


class Upstream:
    """Connections by group name. Lives on the loop's thread.

    `connect(address)` makes a connected socket; `deliver(group, message)` gets what arrives, and `hung_up(group)`
    is called after its last word; `crashed(error)` is told when one of them raised, which is a bug of ours.
    """

    def __init__(
        self,
        connect: Callable[[str], zmq.asyncio.Socket],
        deliver: Callable[[str, ToRouter], None],
        hung_up: Callable[[str], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._connect = connect
        self._deliver = deliver
        self._hung_up = hung_up
        self._crashed = crashed
        self._links: dict[str, _Link] = {}
        self._decode: Decoder[ToRouter] = Decoder(ToRouter)

    def connect(self, group: str, address: str) -> None:
        """Talk to this address from now on, and to no older one."""
        self.drop(group)
        socket = self._connect(address)
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        assert isinstance(monitor, zmq.asyncio.Socket)
        receiving = asyncio.create_task(self._receive(group, socket), name=f"upstream {group}")
        watching = asyncio.create_task(self._watch(group, socket, monitor), name=f"upstream {group} monitor")
        for task in (receiving, watching):
            task.add_done_callback(self._ended)
        self._links[group] = _Link(socket, monitor, (receiving, watching))
        self.send(group, Watch())

    def send(self, group: str, message: ToGroup) -> bool:
        """False when the group is unknown or its queue is full: nothing here ever waits."""
        link = self._links.get(group)
        if link is None:
            return False
        sent = asyncio.ensure_future(link.socket.send(encode(message), zmq.NOBLOCK))
        return sent.done() and sent.exception() is None

    def watch(self) -> None:
        """Once a second: say that this router is there. Rank 0's ROUTER cannot speak first, nor wait for ever."""
        for group in self._links:
            self.send(group, Watch())

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

    async def _receive(self, group: str, socket: zmq.asyncio.Socket) -> None:
        while True:
            for _ in range(BATCH):
                frames = await socket.recv_multipart()
                if len(frames) != 1 or len(frames[0]) > MESSAGE_BYTES:
                    log.warning("group %s sent %d frames that fit no message", group, len(frames))
                    continue
                try:
                    message = self._decode(frames[0])
                except Malformed as error:
                    log.warning("group %s sent what is no message: %s", group, error)
                    continue
                self._deliver(group, message)
            # A receive that finds a message does not yield, so a busy group would starve all others.
            await asyncio.sleep(0)

    async def _watch(self, group: str, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        """The socket connects again by itself; but a ROUTER then takes us for somebody else."""
        while True:
            await recv_monitor_message(monitor)
            while await socket.poll(0):  # what the group said before
                await asyncio.sleep(0)
            self._hung_up(group)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(error)
