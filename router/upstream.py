"""The sockets to the groups: one ZMQ DEALER to each rank 0, typed messages, no waiting."""

import asyncio
import logging
from collections.abc import Callable

import zmq
import zmq.asyncio

from tandem.core.messages import ToGroup, ToRouter, Watch
from tandem.runtime.links import Decoder, Malformed, encode

MESSAGE_BYTES = 64 * 1024
"""What a group has to say is far smaller; a bigger frame is dropped before it is decoded."""

BATCH = 64
"""Messages of one group handled before the loop gets its turn."""

log = logging.getLogger("tandem.router")


class Upstream:
    """Connections by group name. Lives on the loop's thread.

    `connect(address)` makes a connected socket; `deliver(group, message)` gets what arrives; `crashed(error)` is
    told when delivering raised, which is a bug of ours.
    """

    def __init__(
        self,
        connect: Callable[[str], zmq.asyncio.Socket],
        deliver: Callable[[str, ToRouter], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._connect = connect
        self._deliver = deliver
        self._crashed = crashed
        self._links: dict[str, tuple[zmq.asyncio.Socket, asyncio.Task[None]]] = {}
        self._decode: Decoder[ToRouter] = Decoder(ToRouter)

    def connect(self, group: str, address: str) -> None:
        """Talk to this address from now on, and to no older one."""
        self.drop(group)
        socket = self._connect(address)
        task = asyncio.create_task(self._receive(group, socket), name=f"upstream {group}")
        task.add_done_callback(self._ended)
        self._links[group] = (socket, task)
        self.send(group, Watch())

    def send(self, group: str, message: ToGroup) -> bool:
        """False when the group is unknown or its queue is full: nothing here ever waits."""
        link = self._links.get(group)
        if link is None:
            return False
        sent = asyncio.ensure_future(link[0].send(encode(message), zmq.NOBLOCK))
        return sent.done() and sent.exception() is None

    def watch(self) -> None:
        """Once a second: say that this router is there. Rank 0's ROUTER cannot speak first, nor wait for ever."""
        for group in self._links:
            self.send(group, Watch())

    def drop(self, group: str) -> None:
        """Close this group's connection, if there is one."""
        link = self._links.pop(group, None)
        if link is not None:
            link[1].cancel()
            link[0].close(linger=0)

    def close(self) -> None:
        """Close every connection. Messages already sent get a moment to leave."""
        for socket, task in self._links.values():
            task.cancel()
            socket.close(linger=500)
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

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(error)
