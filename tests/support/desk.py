"""The router's book of requests with a clock that the test moves, and a list in the place of sockets."""

from collections.abc import Callable, Mapping, Sequence

from router.attempt import Attempt
from router.breakers import Key
from router.budget import unlimited
from router.errors import ApiError
from router.exchange import Exchange
from router.placement import Route
from router.reader import Reader
from router.requests import Requests
from router.stream import Failed, Stream
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId, RequestId, Room
from tandem.core.inputs import Submit
from tandem.core.members import Member
from tandem.core.messages import Cancel, Done, Evicted, Token
from tandem.core.requests import Reason, Sampling, Work


class Clock:
    """Clock double: time moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> "Timer":
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def move(self, seconds: float) -> None:
        self.now += seconds
        for timer in list(self.timers):
            if timer.when <= self.now and not timer.cancelled:
                timer.cancelled = True
                timer.callback()


class Timer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when, self.callback, self.cancelled = when, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Letters:
    def push(self, token: int) -> str:
        return chr(token)

    def push_all(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def finish(self) -> str:
        return ""


def head(role: RoleName, name: str, incarnation: int | None = None) -> Member:
    known = int.from_bytes(name.encode()) if incarnation is None else incarnation
    return Member(Group(role, name, (1,)), RankId(0), known, 1, "h", "f", "m", "", "", "", Limits())


class Unwatched:
    """Fits Journeys: nobody wants to know."""

    def sent(self, attempt: Attempt) -> None:
        """See Journeys."""

    def computed(self, room: Room) -> None:
        """See Journeys."""

    def ended(self, attempt: Attempt, faulty: Key, *, well: bool) -> None:
        """See Journeys."""


PAIR = Route((head(RoleName.PREFILL, "p0"), head(RoleName.DECODE, "d0")))
OTHER_PAIR = Route((head(RoleName.PREFILL, "p1"), head(RoleName.DECODE, "d1")))
ALONE = Route((head(RoleName.COLOCATED, "c0"),))


class Desk:
    """A book whose messages are kept, with one request open in it."""

    def __init__(
        self,
        max_tokens: int = 100,
        stops: tuple[str, ...] = (),
        streaming: bool = True,
        timer_scale: float = 1.0,
        route: Route = PAIR,
        sampling: Sampling = Sampling(),  # noqa: B008  it is frozen
    ) -> None:
        self.clock = Clock()
        self.sent: list[tuple[str, object]] = []
        self.full: set[str] = set()
        self.book = Requests(
            self._send, self._again, self.clock, 600.0, timer_scale, journeys=Unwatched(), budget=unlimited()
        )
        self.room = Room(RequestId(7), 1)
        self.route = route
        self.without: list[str] = []
        self.doubted: dict[str, int] = {}
        self.exchange = self.open(self.room, max_tokens, stops, streaming, sampling)

    def open(
        self,
        room: Room,
        max_tokens: int = 100,
        stops: tuple = (),
        streaming: bool = True,
        sampling: Sampling = Sampling(),  # noqa: B008  it is frozen
    ) -> Exchange:
        work = Work(room, (1, 2), max_tokens, (256,), sampling, None)
        stream = Stream(Attempt(work, self.route), 10**6, Letters(), stops)
        return self.book.open(stream, deadline=700.0, reader=Reader(streaming=streaming))

    def _again(self, before: Route, work: Work, without: list[str], doubted: Mapping[str, int]) -> Route:
        self.without, self.doubted = list(without), dict(doubted)
        if self.route is None or any(name in without for name in self.route.names):
            raise ApiError(503, "no_decode", "nobody is there")
        return self.route

    def _send(self, group: str, message: object) -> bool:
        if isinstance(message, Cancel):
            assert message.reason not in (Reason.GROUP_LOST, Reason.GROUP_LEFT), "the group would say it of itself"
        self.sent.append((group, message))
        return group not in self.full

    def token(self, group: str, index: int, token: int = 65) -> None:
        self.book.on_message(group, Token(self.room, index, token))

    def done(self, group: str, reason: Reason) -> None:
        self.book.on_message(group, Done(self.room, reason))

    def evicted(self, group: str) -> None:
        """The group gives the current attempt up."""
        self.book.on_message(group, Evicted(self.exchange.attempt.room))

    def submits(self) -> list[tuple[str, Submit]]:
        return [(group, message) for group, message in self.sent if isinstance(message, Submit)]

    def cancels(self) -> list[tuple[str, Reason]]:
        return [(group, message.reason) for group, message in self.sent if isinstance(message, Cancel)]

    def code(self) -> str | None:
        return self.exchange.end.error.code if isinstance(self.exchange.end, Failed) else None


def both(reason: Reason) -> list[tuple[str, Reason]]:
    return [("p0", reason), ("d0", reason)]
