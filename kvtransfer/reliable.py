"""Words between two peers that arrive in order and once, over a link that may lose or double them. Without I/O.

Each side numbers what it says and keeps it until the other has heard it (go-back-N): what is overdue is said again,
from the oldest word on. Who hears a number other than the next one drops it and says how far it has heard. A number
lower than one heard before, or higher than any said, comes from somebody who has forgotten the session.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from tandem.core.messages import Heard, Numbered

RESEND_S = 1.0
"""What has not been heard by then is said again."""
WINDOW = 1024
"""Words under way at once: a socket queues more."""
MAX_UNHEARD = 1 << 15
"""Words kept for a peer that does not hear them; one more, and it counts as lost."""

Out = TypeVar("Out")
In = TypeVar("In")


class Session(Generic[Out, In]):
    """One side of a session. `post` sends a message if it can, and says whether it has left."""

    def __init__(self, number: int, post: Callable[[Numbered[Out] | Heard], bool]) -> None:
        self.number = number
        self._post = post
        self._unheard: deque[Out] = deque()
        self._heard = 0  # the last of ours that the other side has heard
        self._sent = 0  # the last of ours that has ever left
        self._under_way = 0  # those of `_unheard` that have left since we last went back
        self._since_s: float | None = None  # the first tick after something left, was heard, or we went back
        self._got = 0  # the last of theirs
        self._owes = False  # they have not been told so

    @property
    def unheard(self) -> int:
        """Words that the other side may not have heard."""
        return len(self._unheard)

    def say(self, message: Out) -> bool:
        """Send a word, and keep it until it is heard. False: too many are unheard, it is not kept."""
        if len(self._unheard) >= MAX_UNHEARD:
            return False
        self._unheard.append(message)
        self._flush()
        return True

    def tick(self, now_s: float) -> None:
        """Go back to the oldest unheard word if it is overdue; send what could not leave before."""
        if not self._under_way:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= RESEND_S:
            self._under_way, self._since_s = 0, None
        self._flush()

    def on_heard(self, heard: Heard) -> bool:
        """The other side tells how far it has heard us. False: it has forgotten the session."""
        new = heard.seq - self._heard
        if new < 0 or heard.seq > self._sent:
            return False
        for _ in range(new):
            self._unheard.popleft()
        if new:
            self._since_s = None
        self._heard = heard.seq
        self._under_way = max(0, self._under_way - new)
        self._flush()
        return True

    def on_numbered(self, numbered: Numbered[In]) -> In | None:
        """A word, if it is the next one. It is owed an `answer`."""
        self._owes = True
        if numbered.seq != self._got + 1:
            return None
        self._got = numbered.seq
        return numbered.message

    def answer(self) -> None:
        """Say how far we have heard, if that is owed: once for all that came since."""
        if self._owes:
            self._owes = not self._post(Heard(self.number, self._got))

    def remind(self) -> None:
        """Say how far we have heard, owed or not: who has forgotten the session says so then."""
        self._owes = True
        self.answer()

    def _flush(self) -> None:
        """Send what has not left yet, in order, until the window is full or a word cannot leave."""
        while self._under_way < min(len(self._unheard), WINDOW):
            seq = self._heard + self._under_way + 1
            if not self._post(Numbered(self.number, seq, self._unheard[self._under_way])):
                return
            self._under_way += 1
            self._sent = max(self._sent, seq)
