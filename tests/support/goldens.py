"""What the real model must answer: prompts with the tokens of an independent reference."""

import json
from pathlib import Path
from typing import Any

from tandem.engine.tokens import Tokenizer

GOLDENS = Path(__file__).parents[1] / "model" / "goldens.json"
GAP = 1e-3

Golden = dict[str, Any]


def sure_goldens() -> list[Golden]:
    """Prompts whose reference nowhere hesitates between two tokens: these must be equal to the last one."""
    every: list[Golden] = json.loads(GOLDENS.read_text())
    return [golden for golden in every if min(golden["gaps"]) >= GAP]


def reference_text(golden: Golden, tokenizer: Tokenizer) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join(detokenizer.push(token) for token in golden["tokens"]) + detokenizer.finish()
