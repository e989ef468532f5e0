"""`tandem kv`: pages of ended requests that groups hold for each other, and how to have them given back."""

from rich.console import Console
from rich.table import Table

from tandem.control import get, part, tell
from tandem.runtime.history import HeldPages


def ls(admin_url: str) -> int:
    """Print a table. Raises ConfigError with what the router says, or who answers in its place."""
    held = get(admin_url, "held", HeldPages)
    table = Table("group", "request", "peer", "pages", "held for", box=None, pad_edge=False)
    for room in held.rooms:
        table.add_row(room.group, room.room, room.peer, str(room.pages), f"{room.age_ms / 1000:.1f} s")
    console = Console(highlight=False, markup=False)
    if held.rooms:
        console.print(table)
    else:
        console.print("no group holds pages for another one")
    for name, why in held.silent.items():
        console.print(f"{name} was not heard: {why}")
    return 0


def release(group: str, peer: str, admin_url: str) -> int:
    """Have the group cut its peer off: what it holds for it is free once that is done. Raises ConfigError."""
    tell(admin_url, f"workers/{part('group', group)}/release?peer={part('peer', peer)}")
    print(f"group {group} is told to cut {peer} off; tandem kv ls shows when its pages are back")
    return 0
