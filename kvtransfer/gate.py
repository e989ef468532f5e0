"""A door that can be shut for good, and then waits until everybody inside has left."""

import threading


class Gate:
    """Counts who is inside, from any thread."""

    def __init__(self) -> None:
        self._inside = 0
        self._shut = False
        self._changed = threading.Condition()

    @property
    def shut(self) -> bool:
        """Nobody comes in any more."""
        return self._shut

    def enter(self) -> bool:
        """Come in, and `leave` later; False when it is shut."""
        with self._changed:
            self._inside += not self._shut
            return not self._shut

    def leave(self) -> None:
        """Who came in goes out."""
        with self._changed:
            self._inside -= 1
            assert self._inside >= 0, "somebody left who had not come in"
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Shut it, and wait: whether all have left in time. May be called again."""
        with self._changed:
            self._shut = True
            return self._changed.wait_for(lambda: not self._inside, timeout_s)
