"""`tandem`, with a fake engine that hangs for ever in a forward once a file is there: for tests of stalls.

Its path is in HANG, after the name of the rank that it is about, such as `d0.1=/tmp/hang`. The file goes when it bites.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

from tandem.cli import main
from tandem.engine.fake import FakeEngine

run = FakeEngine.run


def hanging(self: FakeEngine, *given: Any) -> Any:
    """Instead of FakeEngine.run."""
    name, _, path = os.environ["HANG"].partition("=")
    group, _, rank = name.partition(".")
    if f"--group={group}" in sys.argv and f"--rank={rank}" in sys.argv and Path(path).exists():
        Path(path).unlink()
        threading.Event().wait()
    return run(self, *given)


if __name__ == "__main__":
    FakeEngine.run = hanging  # type: ignore[method-assign]
    main()
