"""A TCP proxy in front of a port, whose line a test cuts, freezes and mends."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

PIECE = 1 << 16


class Proxy:
    """`with Proxy(host, port) as proxy`: listens on `proxy.port` from then on, also while the line is cut."""

    def __init__(self, host: str, port: int) -> None:
        self._behind = (host, port)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._cut = False
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cut()
        self._flows.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes whoever accepts
        self._listener.close()

    def cut(self) -> None:
        """End what is open, and whatever is opened from now on."""
        with self._lock:
            self._cut = True
            for line in self._open:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Pass nothing on, and keep everything open."""
        self._flows.clear()

    def mend(self) -> None:
        """All is well again."""
        with self._lock:
            self._cut = False
        self._flows.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                front, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(front,), daemon=True).start()

    def _serve(self, front: socket.socket) -> None:
        with front, contextlib.suppress(OSError), socket.create_connection(self._behind) as back:
            with self._lock:
                if self._cut:
                    return
                self._open |= {front, back}
            try:
                answers = threading.Thread(target=self._pass, args=(back, front), daemon=True)
                answers.start()
                self._pass(front, back)
                answers.join()
            finally:
                with self._lock:
                    self._open -= {front, back}

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                self._flows.wait()
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
