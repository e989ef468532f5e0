"""Commands for who operates a cluster, by way of a router's admin port. As in `cli`, they only read flags."""

from typing import Annotated

from typer import Argument, Option, Typer

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


def ls(admin_url: flags.AdminUrl) -> int:
    """Show pages of ended requests that groups hold for a peer group which may still touch them."""
    from tandem.kv import ls as run

    return run(admin_url)


def release(
    group: Annotated[str, Argument(help="The group that holds pages, such as d0.")],
    peer: Annotated[str, Argument(help="The peer group that they are held for, such as p0.")],
    admin_url: flags.AdminUrl,
) -> int:
    """Have a group cut a peer group off, so that what it holds for it can be given back."""
    from tandem.kv import release as run

    return run(group, peer, admin_url)


kv = Typer(help="Pages of the KV cache that groups hold for each other.")
kv.command()(ls)
kv.command()(release)


def trace(
    request_id: Annotated[str, Argument(help="The id of an answer, or its x-request-id header.")],
    admin_url: flags.AdminUrl,
) -> int:
    """Draw what became of a request: waits, chunks, each layer's way to decode, tokens."""
    from tandem.trace import trace as run

    return run(request_id, admin_url)
