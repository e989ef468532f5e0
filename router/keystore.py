"""The file that the keys of tenants come from, read again whenever it changes."""

import logging
import os

from router.tenants import FILE_BYTES, BadKeys, Entry, Keys, checked, read_keys
from tandem.core.errors import ConfigError

LOOK_S = 1.0
"""How often the file is looked at."""

log = logging.getLogger("tandem.router")

_Mark = tuple[int, int, int]  # what is another one when the file has changed


class KeyStore:
    """The keys of a file, read again when it changes, and those given beside it."""

    def __init__(self, path: str = "", given: tuple[Entry, ...] = ()) -> None:
        """Raises ConfigError for a file that cannot be used."""
        self._path = path
        self._given = list(given)
        self._seen: _Mark | None = None
        self._looked: float | None = None
        self.keys = Keys(self._given)
        if path:
            try:
                self._seen = _mark_of(path)  # before it is read: a change in between is seen at the next look
                self.keys = self._read()
            except (OSError, BadKeys) as error:
                raise ConfigError(f"--api-keys-file is {path!r}: {_reason(error)}") from None

    def look(self, now: float) -> bool:
        """Read the file again if it has changed; True when there are other keys now. Call it as often as you like.

        A file that cannot be used changes nothing: the keys of before stay.
        """
        if not self._path or (self._looked is not None and now - self._looked < LOOK_S):
            return False
        self._looked = now
        try:
            mark = _mark_of(self._path)
        except OSError as error:
            return self._keep(None, error)
        if mark == self._seen:
            return False
        try:
            self.keys = self._read()
        except (OSError, BadKeys) as error:
            return self._keep(mark, error)
        self._seen = mark
        log.info("the keys file was read again: %d keys", len(self.keys))
        return True

    def _keep(self, mark: _Mark | None, error: OSError | BadKeys) -> bool:
        """Complain, once for each state of the file."""
        if mark != self._seen:
            log.error("the keys file cannot be used, the keys of before stay: %s", _reason(error))
        self._seen = mark
        return False

    def _read(self) -> Keys:
        with open(self._path, "rb") as file:
            content = file.read(FILE_BYTES + 1)
        return Keys(checked([*read_keys(content).entries, *self._given]))


def _mark_of(path: str) -> _Mark:
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


def _reason(error: OSError | BadKeys) -> str:
    return f"it cannot be read, {error.strerror}" if isinstance(error, OSError) else str(error)
