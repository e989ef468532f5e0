"""One rank of a decode group, as a process: `tandem decode`."""

from tandem.core.commands import rank_name
from tandem.core.config import RankOptions, RoleName
from tandem.core.errors import ConfigError
from tandem.runtime import stage
from tandem.runtime.logs import configure


def serve(options: RankOptions) -> int:
    """Run the rank until a signal or the end of its group; returns the exit status. Raises ConfigError."""
    if options.group.role is not RoleName.DECODE:
        raise ConfigError(f"group {options.group.name} is a {options.group.role.value} group: use `tandem prefill`")
    configure(rank_name(options.group, options.rank))
    return stage.serve(options)
