"""What is said when a command line cannot be read: one sentence with the flag, its value and where to look."""

import re
from collections.abc import Sequence
from itertools import pairwise

import typer


def explain(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """Typer's message with the value that it is about, and where to look."""
    text = " ".join(error.format_message().split())
    text = text.replace(": Value error, ", ": ", 1)
    if found := re.fullmatch(r"Invalid value for '(?P<flag>--[\w-]+)': (?P<fault>.*)", text, re.DOTALL):
        flag, fault = found["flag"], found["fault"]
        text = f"{flag} is {written_after(flag, arguments)!r}: {fault[:1].lower()}{fault[1:]}"
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else f"tandem {arguments[0]}"
    return f"{text.rstrip('.?')}; see `{where} --help`"


def written_after(flag: str, arguments: Sequence[str]) -> str:
    """The last value of a flag on the command line."""
    values = [word.removeprefix(f"{flag}=") for word in arguments if word.startswith(f"{flag}=")]
    values += [value for word, value in pairwise(arguments) if word == flag]
    return values[-1] if values else ""
