"""The client of one answer, as the exchanges see it that have something for it: what it has not read, and its bell."""

from collections.abc import Callable

UNREAD_CHARS = 256 * 1024
"""Text kept behind a connection whose own buffers are full, of all choices together; more ends the answer."""
BODY_CHARS = 64 * 1024 * 1024
"""The same for an answer that is sent as one body; only log-probabilities get there."""


class Reader:
    """Hears of all exchanges of an answer, and reads them as they come or, not `streaming`, at their end."""

    def __init__(self, *, streaming: bool) -> None:
        self.streaming = streaming
        self._chars_max = UNREAD_CHARS if streaming else BODY_CHARS
        self._unread_chars = 0
        self._with_news: dict[int, None] = {}
        self._bell: Callable[[], None] | None = None

    def listen(self, bell: Callable[[], None]) -> None:
        """Ring this for news: now, if there is some."""
        self._bell = bell
        if self._with_news:
            bell()

    def ring(self) -> None:
        """There is something to know that no exchange tells."""
        if self._bell is not None:
            self._bell()

    def tell(self, index: int, chars: int) -> bool:
        """The exchange of this index has text or, with no `chars`, has ended. False when more is unread than may be.

        Who does not stream wants to know of the end only.
        """
        self._unread_chars += chars
        if self.streaming or not chars:
            self._with_news[index] = None
            self.ring()
        return self._unread_chars <= self._chars_max

    def take(self) -> list[int]:
        """The exchanges with news since the last call. Who streams takes all that they have: it counts as read."""
        told = list(self._with_news)
        self._with_news.clear()
        if self.streaming:
            self._unread_chars = 0
        return told
