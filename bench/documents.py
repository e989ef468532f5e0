"""Keeps the generated parts of documents up to date: `python -m bench.documents` rewrites, `--check` only looks.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.diagrams import DIAGRAMS, diagram
from bench.metrics import metric_tables

DOCS = Path(__file__).parent.parent / "docs"

_PART = re.compile(r"(?P<begin><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def _parallelism() -> str:
    from bench.pipeline import parallelism_table

    return parallelism_table()


PARTS: dict[str, Callable[[], str]] = {
    **{f"{name}-states": partial(diagram, table) for name, table in DIAGRAMS.items()},
    "pp-vs-tp": _parallelism,
    "metrics": metric_tables,
}
"""What can be generated, by name."""


def renewed(text: str) -> str:
    """The document with its generated parts made anew. Raises KeyError for a part that nobody makes."""
    return _PART.sub(lambda part: f"{part['begin']}\n{PARTS[part['name']]()}\n\n{part['end']}", text)


def stale() -> dict[Path, str]:
    """Documents that are not up to date, and what they should be."""
    found = {path: path.read_text() for path in sorted(DOCS.glob("*.md"))}
    return {path: new for path, text in found.items() if (new := renewed(text)) != text}


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 when `--check` finds a document that is not up to date."""
    found = stale()
    for path, text in found.items():
        print(path)
        if "--check" not in arguments:
            path.write_text(text)
    return 1 if found and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
