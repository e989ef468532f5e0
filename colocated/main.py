"""One rank of a colocated group, as a process: `tandem colocated`."""

from typing import NoReturn

from tandem.core.commands import rank_name
from tandem.core.config import RankOptions
from tandem.runtime import stage
from tandem.runtime.logs import configure


def serve(options: RankOptions) -> NoReturn:
    """Run the rank until a signal or the end of its group, and end the process with its status."""
    configure(rank_name(options.group, options.rank))
    stage.serve(options)
