"""Who may serve a request."""

from collections.abc import Sequence

from tandem.core.config import Group, RoleName

Route = tuple[str, ...]
"""Names of a prefill and of a decode group, or of one colocated group."""


def routes(groups: Sequence[Group]) -> tuple[Route, ...]:
    """Every route that these groups make."""
    names = {role: [group.name for group in groups if group.role is role] for role in RoleName}
    alone = [(name,) for name in names[RoleName.COLOCATED]]
    pairs = [(prefill, decode) for prefill in names[RoleName.PREFILL] for decode in names[RoleName.DECODE]]
    return (*alone, *pairs)
