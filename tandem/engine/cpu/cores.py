"""Where the stages of one machine see which of them compute, so that they share its cores; cores.h says how."""

import fcntl
import mmap
import os
import struct
import weakref
from pathlib import Path

import numpy as np

STAGES_MAX = 256
ALONE = (0, None, 0, 0)
"""What `Native.open` is told of a stage that shares with nobody; see `Place.shared`."""


class Place:
    """One stage's byte in a file that all stages of a machine map. It is this one's as long as the process lives."""

    def __init__(self, folder: str) -> None:
        """Those with the same folder share. Raises OSError when there is no file to be had, or no place in it."""
        self._file = os.open(Path(folder) / "cores", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, STAGES_MAX)
        free = (place for place in range(STAGES_MAX) if self._take(place))
        self.number = next(free, STAGES_MAX)
        if self.number == STAGES_MAX:
            raise OSError(f"{STAGES_MAX} stages share {folder} already: give this one a folder of its own")
        self._bytes = np.frombuffer(mmap.mmap(self._file, STAGES_MAX), np.uint8)
        self.computes(False)  # who had it before may have died while it did

    def computes(self, now: bool) -> None:
        """Native code says so itself."""
        self._bytes[self.number] = now

    def shared(self) -> tuple[int, int, int, int]:
        """Cores that this process may use, the address of all bytes, how many those are, and which one is its own."""
        return len(os.sched_getaffinity(0)), self._bytes.ctypes.data, STAGES_MAX, self.number

    def _take(self, place: int) -> bool:
        """The lock is the open file's, not the process's: two stages in one process have two places."""
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)
        except (BlockingIOError, PermissionError):  # another has it; POSIX leaves open which of the two says so
            return False
        return True
