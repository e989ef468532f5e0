"""Commands for who operates a cluster, by way of a router's admin port. As in `cli`, they only read flags."""

from typing import Annotated

from typer import Argument, Option

from tandem import flags
from tandem.core.inputs import Order


def control(
    order: Annotated[Order, Argument(help="What to do.")],
    group: Annotated[str, Option(help="Name of the group, such as p0.")],
    admin_url: flags.AdminUrl,
) -> int:
    """Tell a whole group to pause, resume, flush its prefix cache, or drain."""
    from tandem.control import control as run

    return run(order, group, admin_url)


def trace(
    request_id: Annotated[str, Argument(help="The id of an answer, or its x-request-id header.")],
    admin_url: flags.AdminUrl,
) -> int:
    """Draw what became of a request: waits, chunks, each layer's way to decode, tokens."""
    from tandem.trace import trace as run

    return run(request_id, admin_url)
