"""Renders a model's own chat template, the way Hugging Face transformers does, in a sandbox."""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.core.errors import ConfigError

RENDER_S = 2.0
"""For one prompt: a model's template needs milliseconds for a thousand messages."""
STEPS = 1_000_000
"""Rounds of loops and calls of macros in one prompt."""
MAX_BASE, MAX_POWER = 10**6, 64
PROMPT_CHARS = 16 * 1024 * 1024
"""Of a text that is repeated: no body is as long as that."""

Message = Mapping[str, str]
"""`role` and `content`."""


class ChatError(ValueError):
    """The client's messages cannot be turned into a prompt."""


class ChatTemplate:
    """A compiled template. `tokens` are names such as bos_token, with their text.

    Raises ConfigError for a source that is no template.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._environment = environment
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigError(f"the model's chat template cannot be used: {error}") from error
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt, up to where the assistant begins. Raises ChatError when the template refuses the messages."""
        self._environment.begin()
        try:
            return self._template.render(
                messages=list(messages), tools=None, documents=None, add_generation_prompt=True, **self._tokens
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise ChatError(f"the model's chat template refuses these messages: {error}") from error


class Generation(Extension):
    """`{% generation %}` marks what a model is trained on, for transformers; in a prompt it means nothing."""

    tags = {"generation"}  # noqa: RUF012 (as jinja has it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes of what is marked."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Budget(threading.local):
    """What is left of one rendering; each thread has one at a time."""

    steps = 0
    until = 0.0


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which a template also comes to an end: each round of a loop and each call of a macro counts.

    Jinja itself bounds only `range`, and not loops within loops or macros that call themselves.
    """

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._budget = _Budget()

    def begin(self) -> None:
        """Of a rendering, on this thread."""
        self._budget.steps, self._budget.until = STEPS, time.monotonic() + RENDER_S

    def spend(self) -> None:
        """One step more. Raises SecurityError when that is too many, or when it takes too long."""
        self._budget.steps -= 1
        if self._budget.steps < 0 or time.monotonic() > self._budget.until:
            raise SecurityError("it does not come to an end")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Numbers and texts stay small: one operation must not fill the memory."""
        if operator == "**" and (abs(left) > MAX_BASE or abs(right) > MAX_POWER):
            raise SecurityError("a power is too large")
        sized = next((side for side in (left, right) if hasattr(side, "__len__")), None)
        if sized is not None and len(sized) * (right if sized is left else left) > PROMPT_CHARS:
            raise SecurityError("a text is repeated too often")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """With a call of `spend` in front of each body that can run again."""
        parsed = super()._parse(source, name, filename)
        for node in list(parsed.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            call = nodes.Call(nodes.EnvironmentAttribute("spend"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        return parsed


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
