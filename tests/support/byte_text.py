"""A tokenizer's double: ids below 256 are bytes of UTF-8."""

import codecs
from collections.abc import Sequence


class ByteDetokenizer:
    """Incomplete characters are held back; ids from 256 on have no text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push_all(self, tokens: Sequence[int]) -> str:
        return "".join(map(self.push, tokens))

    def push(self, token: int) -> str:
        return self._decoder.decode(bytes([token]) if token < 256 else b"")

    def finish(self) -> str:
        return self._decoder.decode(b"", True)
