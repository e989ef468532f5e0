"""`tandem kv`: pages of ended requests that groups hold for each other, and how to have them given back."""

from rich.console import Console
from rich.table import Table

from tandem.control import EXIT_OK, EXIT_WRONG, get, part, show, show_told, tell
from tandem.runtime.history import HeldPages


def ls(admin_url: str, key: str = "", *, as_json: bool = False) -> int:
    """Print a table; 1 if a group was not heard. Raises ConfigError with what the router says."""
    held = get(admin_url, "held", HeldPages, key)
    if as_json:
        show(held)
        return EXIT_WRONG if held.silent else EXIT_OK
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
    return EXIT_WRONG if held.silent else EXIT_OK


def release(group: str, peer: str, admin_url: str, key: str = "", *, as_json: bool = False) -> int:
    """Have the group cut its peer off: what it holds for it is free once that is done. Raises ConfigError."""
    tell(admin_url, f"workers/{part('group', group)}/release?peer={part('peer', peer)}", key)
    sentence = f"group {group} is told to cut {peer} off; tandem kv ls shows when its pages are back"
    show_told(sentence, {"group": group, "order": "release", "peer": peer}, as_json=as_json)
    return EXIT_OK
