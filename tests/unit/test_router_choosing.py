"""Where new requests and those that go on are sent: what groups say of their caches counts, and who fails rests."""

from typing import Any

import msgspec
import pytest
from desk import OTHER_PAIR, PAIR, Clock, Letters

from router.asked import Asked
from router.attempt import Attempt
from router.breakers import BreakerState
from router.budget import RetryBudget
from router.dispatch import Dispatch
from router.exchange import Exchange
from router.explain import explain
from router.index import Hashed
from router.membership import Membership
from router.policies import PolicyName
from router.reader import Reader
from router.stream import Stream
from router.workers import standing
from tandem.core.ids import RequestId, Room
from tandem.core.inputs import Submit
from tandem.core.messages import Cached, Done, Load, ToGroup, Token
from tandem.core.requests import Reason, Sampling, Work

PROMPT = tuple(range(1600))
EDGE = ("p0", "d0")


class Links:
    """Fits `Links`: what is sent is kept."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ToGroup]] = []

    def connect(self, group: str, address: str) -> None:
        """See Links."""

    def send(self, group: str, message: ToGroup) -> bool:
        self.sent.append((group, message))
        return True

    def drop(self, group: str) -> None:
        """See Links."""


class Front:
    """A dispatch with two prefill and two decode groups that take everything."""

    def __init__(self, policy: PolicyName = "cache_aware", budget: RetryBudget | None = None, **rules: Any) -> None:
        self.links, self.clock = Links(), Clock()
        budget = budget or RetryBudget(lambda: 0.5, delay_s=0.0)
        self.dispatch = Dispatch(
            Membership("m"),
            self.links,
            self.clock,
            600.0,
            policy=policy,
            budget=budget,
            breaker_failures=2,
            **rules,
        )
        heads = [*PAIR.heads, *OTHER_PAIR.heads]
        self.dispatch.on_members(
            [msgspec.structs.replace(head, intake=f"ipc://{head.group.name}", epoch=1) for head in heads]
        )
        for head in heads:
            self.load(head.group.name)
        self._rid = 0

    def load(self, group: str) -> None:
        self.dispatch.on_message(group, Load(group, 0, 0, 4096))

    def caches(self, group: str, prompt: tuple[int, ...] = PROMPT, salt: str = "") -> None:
        index = self.dispatch.underway.of(group).index
        pages = tuple(Hashed(prompt, salt).pages(16))
        self.dispatch.on_message(group, Cached(index.number, index.number + len(pages), pages, ()))

    def place(self, prompt: tuple[int, ...] = PROMPT, salt: str = "") -> tuple[str, ...]:
        return self.dispatch.place(prompt, salt).names

    def open(self, prompt: tuple[int, ...] = PROMPT, max_tokens: int = 100) -> Exchange:
        self._rid += 1
        work = Work(Room(RequestId(self._rid), 1), prompt, max_tokens, (), Sampling(), None)
        stream = Stream(Attempt(work, self.dispatch.place(prompt, "")), 257, Letters(), ())
        return self.dispatch.requests.open(stream, deadline=self.clock.now + 600.0, reader=Reader(streaming=False))

    def says(self, exchange: Exchange, group: str, reason: Reason) -> None:
        self.dispatch.on_message(group, Done(exchange.attempt.room, reason))

    def finishes(self, exchange: Exchange) -> None:
        """All tokens come."""
        prefill, decode = exchange.attempt.route.names
        self.dispatch.on_message(prefill, Token(exchange.attempt.room, 0, 65))
        for index in range(exchange.count, exchange.attempt.work.max_tokens):
            self.dispatch.on_message(decode, Token(exchange.attempt.room, index, 65))

    def fails(self, exchange: Exchange) -> None:
        """The hand-over does, as often as it is tried."""
        while exchange.end is None:
            self.says(exchange, exchange.attempt.route.names[1], Reason.TRANSFER_FAILED)

    def submits(self) -> list[str]:
        return [group for group, message in self.links.sent if isinstance(message, Submit)]


@pytest.fixture
def front() -> Front:
    return Front()


def test_a_request_goes_where_its_prompt_is_cached(front: Front):
    front.caches("p1")
    front.caches("d1")
    assert front.place() == ("p1", "d1")
    assert front.place(salt="somebody") == ("p0", "d0")


def test_a_prompt_like_one_on_its_way_follows_it(front: Front):
    home = front.open().attempt.route.names
    assert front.place() == home
    assert front.place(tuple(range(5000, 6600))) != home


def test_where_there_is_no_choice_no_prompt_is_hashed(front: Front):
    heads = [msgspec.structs.replace(head, intake=f"ipc://{head.group.name}", epoch=1) for head in PAIR.heads]
    for group in OTHER_PAIR.names:
        front.dispatch.on_message(group, Done(Room(RequestId(9), 1), Reason.GROUP_LEFT))
    front.dispatch.on_members(heads)
    exchange = front.open()
    assert exchange.attempt.route.names == EDGE
    assert not front.dispatch.hashed(PROMPT, "")._pages
    front.finishes(exchange)
    assert front.dispatch.underway.of("p0").queued == 0


def test_what_a_group_had_is_forgotten_when_it_is_lost(front: Front):
    front.caches("p1")
    front.dispatch.on_message("p1", Done(Room(RequestId(9), 1), Reason.GROUP_LOST))
    assert front.dispatch.cached("p1") == 0
    assert front.dispatch.underway.of("p1").index.holds() == frozenset()


@pytest.mark.parametrize(("policy", "number"), [("cache_aware", 100), ("round_robin", None), ("power_of_two", None)])
def test_only_who_looks_at_caches_is_told_of_them(policy: PolicyName, number: int | None):
    front = Front(policy)
    front.caches("p0")
    assert front.dispatch.cached("p0") == number


def test_an_edge_whose_hand_overs_fail_gets_no_more_until_a_trial_is_well(front: Front):
    front.caches("p0")
    front.caches("d0")
    both = [front.open(), front.open()]
    for failed in both:
        assert failed.attempt.route.names == EDGE
        front.says(failed, "d0", Reason.TRANSFER_FAILED)
        assert failed.attempt.route.names != EDGE
    assert front.dispatch.breakers.state(EDGE) is BreakerState.OPEN
    for failed in both:
        front.finishes(failed)
    assert front.place() != EDGE
    front.clock.move(30.0)
    trial = front.open()
    assert trial.attempt.route.names == EDGE
    assert front.place() != EDGE, "one trial is enough"
    front.finishes(trial)
    assert front.dispatch.breakers.state(EDGE) is BreakerState.CLOSED
    assert front.place() == EDGE


@pytest.mark.parametrize(
    "reason", [Reason.TOO_LARGE, Reason.DEADLINE, Reason.QUEUE_FULL, Reason.BAD_GRAMMAR, Reason.NOT_A_NUMBER]
)
def test_what_is_no_fault_of_the_groups_opens_no_breaker(front: Front, reason: Reason):
    for _ in range(10):
        exchange = front.open()
        for group in exchange.attempt.route.names:
            front.says(exchange, group, reason)
        assert exchange.end is not None
    assert all(not standing(front.dispatch, name)["breakers"] for name in ("p0", "p1", "d0", "d1"))


def test_when_every_route_rests_the_request_is_tried_all_the_same(front: Front):
    for prefill in ("p0", "p1"):
        for _ in range(2):
            front.dispatch.breakers.failed((prefill,), front.clock.now)
    assert front.place() == EDGE


def test_a_group_that_crashes_again_and_again_rests(front: Front):
    for epoch in (2, 3):
        front.dispatch.on_message("p0", Done(Room(RequestId(9), 1), Reason.GROUP_LOST))
        heads = [msgspec.structs.replace(PAIR.heads[0], intake="ipc://p0", epoch=epoch)]
        front.dispatch.on_members(heads)
        front.load("p0")
    assert {route.names[0] for route in front.dispatch.routes()} == {"p0", "p1"}
    front.caches("p0")
    assert front.place()[0] == "p1"


def test_a_retry_comes_after_its_delay(front: Front):
    front = Front(budget=RetryBudget(lambda: 0.5, delay_s=2.0))
    exchange = front.open()
    front.says(exchange, exchange.attempt.route.names[1], Reason.TRANSFER_FAILED)
    assert len(front.submits()) == 2, "of the first attempt"
    front.clock.move(1.9)
    assert len(front.submits()) == 2
    front.clock.move(0.2)
    assert len(front.submits()) == 4
    front.finishes(exchange)
    assert exchange.end is not None


def test_a_retry_whose_client_has_left_meanwhile_is_not_sent(front: Front):
    front = Front(budget=RetryBudget(lambda: 0.5, delay_s=2.0))
    exchange = front.open()
    front.says(exchange, exchange.attempt.route.names[1], Reason.TRANSFER_FAILED)
    exchange.abandon()
    front.clock.move(10.0)
    assert len(front.submits()) == 2


def test_a_retry_that_is_one_too_many_ends_the_request_with_the_failure(front: Front):
    front = Front(budget=RetryBudget(lambda: 0.5, floor=1, delay_s=0.0))
    first, second = front.open(), front.open()
    front.says(first, first.attempt.route.names[1], Reason.TRANSFER_FAILED)
    front.says(second, second.attempt.route.names[1], Reason.TRANSFER_FAILED)
    assert first.end is None
    assert second.end is not None
    assert front.dispatch.requests.budget.refused == 1


def test_a_request_has_no_more_retries_than_the_operator_lets_it(front: Front):
    front = Front(retries_max=1)
    exchange = front.open()
    front.says(exchange, exchange.attempt.route.names[1], Reason.TRANSFER_FAILED)
    front.says(exchange, exchange.attempt.route.names[1], Reason.TRANSFER_FAILED)
    assert exchange.end is not None
    assert exchange.attempt.room.attempt == 2


@pytest.mark.parametrize("policy", ["cache_aware", "round_robin", "power_of_two"])
def test_after_any_end_nothing_counts_as_under_way(policy: PolicyName):
    front = Front(policy)
    exchanges = [front.open() for _ in range(8)]
    front.finishes(exchanges[0])
    front.fails(exchanges[1])
    exchanges[2].abandon()
    front.dispatch.on_message("p0", Done(Room(RequestId(99), 1), Reason.GROUP_LOST))
    front.dispatch.on_message("d1", Done(Room(RequestId(99), 1), Reason.GROUP_LEFT))
    for exchange in exchanges[3:]:
        exchange.abandon()
    for name in ("p0", "p1", "d0", "d1"):
        known = front.dispatch.underway.of(name)
        assert (known.open, known.queued, known.computing, known.index._coming) == (0, 0, 0, {})


# explained


def ask(prompt: tuple[int, ...] = PROMPT) -> Asked:
    class Prompt:
        salt = ""

    Prompt.prompt = prompt  # type: ignore[attr-defined]
    return Prompt  # type: ignore[return-value]


def test_an_explanation_says_what_a_placement_would_do_and_changes_nothing(front: Front):
    front.caches("p1")
    before = front.dispatch.sight(front.dispatch.routes(), Hashed(PROMPT, ""))
    for _ in range(2):
        told = explain(front.dispatch, ask())
        assert (told.chosen, told.policy, told.prompt_tokens) == (front.place(), "cache_aware", 1600)
    assert [one.cost for one in told.options] == sorted(one.cost for one in told.options)
    assert (told.options[0].cached_on_prefill, told.options[0].parts.compute) == (1584, 16)
    assert front.dispatch.sight(front.dispatch.routes(), Hashed(PROMPT, "")) == before


def test_an_explanation_of_turns_takes_none(front: Front):
    front = Front("round_robin")
    chosen = explain(front.dispatch, ask()).chosen
    assert chosen == explain(front.dispatch, ask()).chosen == front.place()


def test_who_rests_or_is_gone_or_has_no_partner_is_named_with_the_reason(front: Front):
    for _ in range(2):
        front.dispatch.breakers.failed(EDGE, front.clock.now)
    front.dispatch.on_message("p1", Done(Room(RequestId(9), 1), Reason.GROUP_LOST, "rank 1 was silent for 2.5 s"))
    odd = msgspec.structs.replace(OTHER_PAIR.heads[1], intake="ipc://d1", epoch=1, fingerprint="other")
    front.dispatch.on_members([odd, msgspec.structs.replace(OTHER_PAIR.heads[0], intake="ipc://p1", epoch=1)])
    told = explain(front.dispatch, ask())
    why = {one.groups: one.why for one in told.excluded}
    assert why == {
        EDGE: "the breaker of p0 -> d0 is open for 30 s yet, after 2 failures in a row",
        ("p1",): "it was lost: its epoch has ended: rank 1 was silent for 2.5 s",
        ("d1",): "no usable prefill group has its fingerprint other",
    }
    assert told.chosen == EDGE, "there is no other way"


def test_a_worker_is_shown_with_its_pages_and_its_breakers(front: Front):
    front.caches("p0")
    front.dispatch.breakers.failed(EDGE, front.clock.now)
    shown = standing(front.dispatch, "p0")
    assert shown == {"cached_pages": 100, "breakers": {"p0 -> d0": {"state": "closed", "failures": 1}}}
    assert standing(Front("round_robin").dispatch, "p0") == {"cached_pages": None, "breakers": {}}
