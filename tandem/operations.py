"""Commands for who operates a cluster, by way of a router's admin port. As in `cli`, they only read flags."""

from typing import Annotated, Literal

from typer import Argument, Option, Typer

from tandem import flags

OrderName = Literal["pause", "resume", "flush", "drain"]
"""Orders that concern a group alone; a release has a peer."""


def status(admin_url: flags.AdminUrl, admin_api_key: flags.AdminKey = "", as_json: flags.Json = False) -> int:
    """Show groups and ranks: readiness and its cause, engine, pages, queues. Exit status 1 if anything is amiss."""
    from tandem.status import status as run

    return run(admin_url, admin_api_key, as_json=as_json)


def top(
    admin_url: flags.AdminUrl,
    admin_api_key: flags.AdminKey = "",
    interval: Annotated[float, Option(min=0.2, max=3600, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, Option("--once", help="Look twice, print once, and end; for pipes, too.")] = False,
    as_json: flags.Json = False,
) -> int:
    """The same live, with rates and the newest requests, until Ctrl-C."""
    from tandem.top import top as run

    return run(admin_url, admin_api_key, interval, once=once, as_json=as_json)


def control(
    order: Annotated[OrderName, Argument(help="What to do.")],
    group: Annotated[str, Option(help="Name of the group, such as p0.")],
    admin_url: flags.AdminUrl,
    admin_api_key: flags.AdminKey = "",
    as_json: flags.Json = False,
) -> int:
    """Tell a whole group to pause, resume, flush its prefix cache, or drain."""
    from tandem.control import control as run

    return run(order, group, admin_url, admin_api_key, as_json=as_json)


def drain(
    group: Annotated[str, Argument(help="Name of the group, such as p0.")],
    admin_url: flags.AdminUrl,
    admin_api_key: flags.AdminKey = "",
    deadline_s: Annotated[float, Option(min=0, max=86400, help="Seconds to wait; then the exit status is 1.")] = 600.0,
    as_json: flags.Json = False,
) -> int:
    """Have a group take nothing new, and wait until it has finished what it has."""
    from tandem.drain import drain as run

    return run(group, admin_url, admin_api_key, deadline_s, as_json=as_json)


def ls(admin_url: flags.AdminUrl, admin_api_key: flags.AdminKey = "", as_json: flags.Json = False) -> int:
    """Show pages of ended requests that groups hold for a peer group which may still touch them."""
    from tandem.kv import ls as run

    return run(admin_url, admin_api_key, as_json=as_json)


def release(
    group: Annotated[str, Argument(help="The group that holds pages, such as d0.")],
    peer: Annotated[str, Argument(help="The peer group that they are held for, such as p0.")],
    admin_url: flags.AdminUrl,
    admin_api_key: flags.AdminKey = "",
    as_json: flags.Json = False,
) -> int:
    """Have a group cut a peer group off, so that what it holds for it can be given back."""
    from tandem.kv import release as run

    return run(group, peer, admin_url, admin_api_key, as_json=as_json)


kv = Typer(help="Pages of the KV cache that groups hold for each other.", rich_markup_mode=None)
kv.command()(ls)
kv.command()(release)


def trace(
    request_id: Annotated[str, Argument(help="The id of an answer, or its x-request-id header.")],
    admin_url: flags.AdminUrl,
    admin_api_key: flags.AdminKey = "",
    as_json: flags.Json = False,
) -> int:
    """Draw what became of a request: waits, chunks, each layer's way to decode, tokens."""
    from tandem.trace import trace as run

    return run(request_id, admin_url, admin_api_key, as_json=as_json)
