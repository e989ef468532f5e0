"""One router, as a process: `tandem router`."""

import json
import logging

from router import app
from tandem.core.config import RouterOptions
from tandem.runtime.logs import configure


def serve(options: RouterOptions) -> int:
    """Run the router until a signal; returns the exit status. Prints `READY {urls}` when it listens.

    Raises ConfigError.
    """
    configure("router")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and end are told by us
    return app.serve(options, announce)


def announce(url: str, admin_url: str) -> None:
    """Tell whoever started this process where it listens."""
    print("READY", json.dumps({"url": url, "admin_url": admin_url}), flush=True)
