"""Who has left the registry, and since when: a registry that restarted empty is full again soon."""

from collections.abc import Container, Iterable

from kvtransfer.handshake import Key


class Absences:
    """Of the ranks that a link knows. Times are monotonic seconds."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since_s: dict[Key, float] = {}

    def update(self, known: Iterable[Key], present: Container[Key], now_s: float) -> list[Key]:
        """The registry has been read: those that have been away for too long. They are not known any more."""
        away = {key: self._since_s.get(key, now_s) for key in known if key not in present}
        gone = [key for key, since_s in away.items() if now_s - since_s >= self._patience_s]
        self._since_s = {key: since_s for key, since_s in away.items() if key not in gone}
        return gone
