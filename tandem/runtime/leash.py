"""Ties a process to its supervisor: when standard input closes, the supervisor is gone, and so shall we be."""

import os
import threading
import time
from collections.abc import Callable

GRACE_S = 3.0
"""Time to end in order; then the process ends all the same."""


def leash(on_line: Callable[[str], None], let_go: Callable[[], None]) -> None:
    """Call `on_line` with each line that the supervisor writes, on a thread, and `let_go` when it is gone."""
    threading.Thread(target=_watch, args=(on_line, let_go), name="leash", daemon=True).start()


def _watch(on_line: Callable[[str], None], let_go: Callable[[], None]) -> None:
    rest = b""
    while data := os.read(0, 4096):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            on_line(line.decode(errors="replace"))
    let_go()
    time.sleep(GRACE_S)
    os._exit(1)
