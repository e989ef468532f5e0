"""Renders a model's own chat template, the way Hugging Face transformers does, in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, str]
"""`role` and `content`."""


class ChatError(ValueError):
    """The client's messages cannot be turned into a prompt."""


class ChatTemplate:
    """A compiled template. `tokens` are names such as bos_token, with their text."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._template = environment.from_string(source)
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt, up to where the assistant begins. Raises ChatError when the template refuses the messages."""
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=True, **self._tokens)
        except (TemplateError, TypeError, ValueError) as error:
            raise ChatError(f"the model's chat template refuses these messages: {error}") from error


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
