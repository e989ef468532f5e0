"""A raw TCP connection between the two hosts: what the network gives without a transport."""

import contextlib
import hmac
import secrets
import socket
import threading
import time

from tandem.doctor.words import Moved, Port

MEASURE_S = 1.0
TIMEOUT_S = 10.0
"""For each step: connecting, one chunk, the receiver's count."""
CHUNK_BYTES = 1 << 20
TOKEN_BYTES = 16
COUNT_BYTES = 8


class Sink:
    """Takes the bytes of one connection that says the token, and answers with their count."""

    def __init__(self, host: str) -> None:
        """Raises OSError when no port of `host` can be bound."""
        self._server = socket.create_server((host, 0), family=family_of(host))
        self._server.settimeout(TIMEOUT_S)
        self.port = Port(self._server.getsockname()[1], secrets.token_bytes(TOKEN_BYTES))
        threading.Thread(target=self._run, name="raw port", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            with self._server:
                connection, _ = self._server.accept()
            with connection:
                connection.settimeout(TIMEOUT_S)
                said = receive(connection, TOKEN_BYTES)
                if hmac.compare_digest(said, self.port.token):
                    connection.sendall(drain(connection).to_bytes(COUNT_BYTES, "big"))


def receive(connection: socket.socket, length: int) -> bytes:
    """So many bytes, or fewer when the sender has no more."""
    data = b""
    while more := connection.recv(length - len(data)):
        data += more
    return data


def drain(connection: socket.socket) -> int:
    """Bytes until the sender has no more."""
    buffer, count = bytearray(CHUNK_BYTES), 0
    while got := connection.recv_into(buffer):
        count += got
    return count


def send(host: str, port: Port, seconds: float = MEASURE_S) -> Moved:
    """Fill the connection for so long, and wait until all has arrived."""
    if port.detail:
        return Moved(detail=port.detail)
    chunk, sent = bytes(CHUNK_BYTES), 0
    try:
        with socket.create_connection((host, port.port), TIMEOUT_S) as connection:
            connection.sendall(port.token)
            begin = time.monotonic()
            while time.monotonic() < begin + seconds:
                connection.sendall(chunk)
                sent += len(chunk)
            connection.shutdown(socket.SHUT_WR)
            count = receive(connection, COUNT_BYTES)
            took_s = time.monotonic() - begin
    except OSError as error:
        return Moved(detail=f"port {port.port} of {host}: {error}")
    if count != sent.to_bytes(COUNT_BYTES, "big"):
        return Moved(detail=f"port {port.port} of {host}: it did not confirm the {sent} bytes sent")
    return Moved(sent, took_s)


def family_of(host: str) -> socket.AddressFamily:
    """By the look of the address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
