"""Waiting for what must come true; nothing here knows of clusters."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 60.0
LOOK_S = 0.01


def eventually(condition: Callable[[], Any], what: str = "the condition", deadline_s: float = DEADLINE_S) -> Any:
    """The condition's first true value."""
    until = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < until, f"not in {deadline_s:g} s: {what}"
        threading.Event().wait(LOOK_S)
    return value


def stop_still(pid: int) -> None:
    """SIGSTOP to a child of ours, and wait until it stands still, with all of its threads."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
