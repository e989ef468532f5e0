"""The writing end of the shm transport: a connection to one receiver, which copies out of our memory when asked."""

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence

from kvtransfer.transports.blocks import Block, batches
from kvtransfer.transports.shm_packets import BLOCKS_PER_PACKET, MAX_PACKET_BYTES, Answer, Attach, Copy, ToReceiver
from tandem.core.events import Written
from tandem.runtime.links import Decoder, Malformed, encode

log = logging.getLogger("tandem.kvtransfer")


class _Silent(ConnectionError):
    """The receiver was asked and has not answered: it may still do it."""


class Line:
    """Connects when it is first used, and anew after a failure. One call at a time; the others wait for their turn.

    A readable `closing` ends whatever is under way, as if its deadline had passed. Deadlines are monotonic times.
    """

    def __init__(self, endpoint: str, path: str, memfd: int, closing: int) -> None:
        self._endpoint = endpoint
        self._path = path
        self._memfd = memfd
        self._closing = closing
        self._turn = threading.Lock()
        self._socket: socket.socket | None = None
        self._decode: Decoder[Answer] = Decoder(Answer)

    def ping(self, end_s: float) -> None:
        """Prove that the receiver answers. Raises ConnectionError when it does not."""
        with self._taken(end_s) as connection:
            self._ask(connection, Copy(()), end_s)

    def write(self, blocks: Sequence[Block], end_s: float) -> Written:
        """Have these copied: (offset in our memory, address in the receiver's, bytes) triples.

        Unsettled only when the receiver was asked and is silent: who closes the connection copies nothing any more. The
        connection is closed then, so that it need not begin any more, either.
        """
        try:
            with self._taken(end_s) as connection:
                for batch in batches(blocks, BLOCKS_PER_PACKET):
                    if time.monotonic() >= end_s:
                        return Written.FAILED_SETTLED  # what was asked has landed, the rest never will
                    if refused := self._ask(connection, Copy(tuple(batch)), end_s).refused:
                        log.warning("%s refuses a write: %s", self._path, refused)
                        return Written.FAILED_SETTLED
        except _Silent as error:
            log.warning("%s", error)
            return Written.FAILED_UNSETTLED
        except ConnectionError:
            return Written.FAILED_SETTLED
        return Written.OK

    def close_if_dead(self) -> None:
        """Hang up when the receiver has done so, unless a call is under way: that will find out by itself."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            if self._socket is not None and self._heard(self._socket, time.monotonic()):
                self.close()  # nobody says anything unasked
        finally:
            self._turn.release()

    def close(self) -> None:
        """Hang up. No call may be under way."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @contextlib.contextmanager
    def _taken(self, end_s: float) -> Iterator[socket.socket]:
        """The connection, ours alone meanwhile. A ConnectionError, from here or from within, ends it."""
        if not self._turn.acquire(timeout=max(0.0, end_s - time.monotonic())):
            raise ConnectionError(f"{self._path}: another write took all the time")
        try:
            if self._socket is None:
                self._socket = self._open(end_s)
            yield self._socket
        except ConnectionError:
            self.close()
            raise
        finally:
            self._turn.release()

    def _open(self, end_s: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.setblocking(False)
            connection.connect(self._path)  # at once, or never: too many wait there to be accepted
            refused = self._ask(connection, Attach(self._endpoint), end_s, [self._memfd]).refused
        except OSError as error:
            connection.close()
            detail = error.strerror or error
            raise ConnectionError(f"{self._path} cannot be reached, {detail}: shm needs one run directory") from None
        if refused:
            connection.close()
            raise ConnectionError(f"{self._path} refuses this rank: {refused}")
        return connection

    def _ask(self, connection: socket.socket, packet: ToReceiver, end_s: float, files: Sequence[int] = ()) -> Answer:
        """Raises ConnectionError, as _Silent if what was asked may still be done."""
        try:
            socket.send_fds(connection, [encode(packet)], files)  # all of it, or it raises
        except OSError as error:
            raise ConnectionError(f"{self._path} takes no requests: {error.strerror}") from None
        if not self._heard(connection, end_s):
            raise _Silent(f"{self._path} was silent until the deadline")
        data = connection.recv(MAX_PACKET_BYTES)
        if not data:
            raise ConnectionError(f"{self._path} has closed the connection")
        try:
            return self._decode(data)
        except Malformed as error:
            raise _Silent(f"{self._path} answers nonsense: {error}") from None

    def _heard(self, connection: socket.socket, end_s: float) -> bool:
        """Wait for a word, or the end of the connection. False when the deadline or `closing` comes first."""
        poll = select.poll()
        poll.register(self._closing, select.POLLIN)
        poll.register(connection, select.POLLIN)
        found = {file for file, _ in poll.poll(max(0.0, end_s - time.monotonic()) * 1000)}
        return found == {connection.fileno()}
