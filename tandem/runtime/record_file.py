"""A rank's flight record of a whole epoch, in a file. A thread writes it: the tick loop never waits for the disk."""

import contextlib
import logging
import queue
import threading
from pathlib import Path

from tandem.core.errors import ConfigError
from tandem.core.ids import Tick
from tandem.core.recorder import Recorder
from tandem.runtime.records import Heading, begin, create, framed

log = logging.getLogger("tandem")

BACKLOG = 4096
"""Rounds of the tick loop that may wait for the disk: half a minute and more. After that the record ends."""


class RecordFile:
    """Takes what a recorder has, from tick 0 on. Not bounded: it grows by about as much as the ring's batons.

    When the disk is full or too slow, the record ends there, and the log says so; the rank goes on.
    """

    def __init__(self, directory: Path, heading: Heading, recorder: Recorder) -> None:
        """Raises ConfigError when the file cannot be made."""
        self.path = directory / f"{heading.group.name}-{heading.rank}-{heading.epoch}.record"
        try:
            self._file = create(self.path)
            self._begin(heading)
        except OSError as error:
            raise ConfigError(f"record-dir is {str(directory)!r}: {self.path}: {error.strerror}") from None
        self._recorder = recorder
        self._taken = Tick(-1)
        self._ended = False
        self._waiting: queue.Queue[bytes | None] = queue.Queue(BACKLOG)
        self._thread = threading.Thread(target=self._write, name="record", daemon=True)
        self._thread.start()

    def _begin(self, heading: Heading) -> None:
        """A record without its heading cannot be read: none is left."""
        try:
            begin(self._file, heading)
        except OSError:
            self.path.unlink()
            with contextlib.suppress(OSError):  # it would write the heading again
                self._file.close()
            raise

    def take(self) -> None:
        """Write what has been recorded since the last call."""
        news = self._recorder.since(self._taken)
        if not news or self._ended:
            return
        if news[0].tick != self._taken + 1:
            self._end("the rank recorded more than it keeps at once")
            return
        self._taken = news[-1].tick
        try:
            self._waiting.put_nowait(framed(recorded.entry for recorded in news))
        except queue.Full:
            self._end("the disk is too slow")

    def _end(self, why: str) -> None:
        """A record with a gap could not be re-executed."""
        self._ended = True
        log.error("the record %s ends: %s", self.path, why)

    def close(self, timeout_s: float) -> None:
        """Write what is left, also a frame whose step did not end."""
        self.take()
        unfinished = self._recorder.unfinished()
        last = [framed([unfinished])] if unfinished is not None and not self._ended else []
        with contextlib.suppress(queue.Full):  # the disk is stuck: what is on it has to do
            for item in (*last, None):
                self._waiting.put(item, timeout=timeout_s)
            self._thread.join(timeout_s)

    def _write(self) -> None:
        """On the thread. What has been written can be read when nothing else waits."""
        entries: bytes | None = b""
        try:
            with self._file as file:
                while (entries := self._waiting.get()) is not None:
                    file.write(entries)
                    if self._waiting.empty():
                        file.flush()
        except OSError as error:
            self._end(str(error))
            while entries is not None:
                entries = self._waiting.get()
