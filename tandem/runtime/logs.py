"""Log lines of one process: standard error, one line each, and never a prompt or a token's text."""

import logging
import sys

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s {name} %(message)s"
TIME = "%H:%M:%S"


class OneLine(logging.Formatter):
    """What others read line by line stays one: line ends within a message are written as `\\n`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record, a traceback included, without a line end."""
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")


def configure(name: str, level: int = logging.INFO) -> None:
    """Send every log record of this process to standard error, under `name`, such as p0.1."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT.format(name=name.replace("%", "%%")), TIME))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
