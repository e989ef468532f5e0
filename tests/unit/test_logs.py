"""Log lines: one record is one line, with the name of its process."""

import logging
import subprocess
import sys

from tandem.runtime.logs import FORMAT, OneLine

CODE = """
import logging
from tandem.runtime.logs import configure
configure("p0.1")
configure("p0.1")
logging.getLogger("tandem").info("a %s", "b")
logging.getLogger("tandem").debug("never")
"""


def test_a_message_with_line_ends_stays_one_line():
    record = logging.LogRecord("tandem", logging.INFO, "", 0, "one\r\ntwo", (), None)
    text = OneLine(FORMAT.format(name="p0.1")).format(record)
    assert text.endswith("p0.1 one\\r\\ntwo")
    assert "\n" not in text


def test_lines_go_to_standard_error_once():
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert line.endswith("INFO    p0.1 a b")
