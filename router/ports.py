"""What the router needs from others: Protocols only, so that nothing here pulls in an engine or a redis."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.core.members import Member

Members = Callable[[], list[Member]]
"""One look at the registry. Blocks; may raise, and then the last known members stay."""


class Detokenizer(Protocol):
    """Turns one request's tokens into text, holding back bytes that are no whole character yet."""

    def push(self, token: int) -> str: ...

    def push_all(self, tokens: Sequence[int]) -> str: ...

    def finish(self) -> str:
        """What is still held back."""
        ...


class Tokenizer(Protocol):
    """One model's tokenizer. Called from more than one thread. Raises ValueError for messages the model refuses."""

    eos_ids: tuple[int, ...]

    def encode_text(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]: ...

    def detokenizer(self) -> Detokenizer: ...

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to the text: nothing, for a special one."""
        ...

    def special_name(self, token: int) -> str:
        """Of a special token; empty for any other."""
        ...


CheckGrammar = Callable[[str], None]
"""Compiles a JSON schema. Raises ValueError for one that the groups could not use. Called from more than one thread."""


@dataclass(frozen=True)
class Model:
    """The one model this router serves."""

    name: str  # what clients call it
    vocab: int  # token ids are 0 .. vocab - 1
    tokenizer: Tokenizer
    check_grammar: CheckGrammar | None = None  # absent: answers cannot be constrained
