"""Log lines of one process: standard error, one line each, and never a prompt or a token's text."""

import logging
import sys

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s {name} %(message)s"
TIME = "%H:%M:%S"


class OneLine(logging.Formatter):
    """What others read line by line stays one: line ends within a message are written as `\\n`."""

    _second = -1
    _time = ""

    def format(self, record: logging.LogRecord) -> str:
        """The record, a traceback included, without a line end."""
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")

    def formatTime(  # noqa: N802  logging's name
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        """Many lines have the same second."""
        if int(record.created) != self._second:
            self._second, self._time = int(record.created), super().formatTime(record, datefmt)
        return self._time


def configure(name: str, level: int = logging.INFO) -> None:
    """Send every log record of this process to standard error, under `name`, such as p0.1.

    What no line shows is not looked up: threads, processes and the place in the source.
    """
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT.format(name=name.replace("%", "%%")), TIME))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
