"""What a router remembers of requests, for those who ask the ranks later."""

from router.recalled import MOST, Recalled
from router.transfers import say_why
from tandem.core.ids import RequestId
from tandem.runtime.history import Summary


def test_every_choice_of_a_request_has_waited():
    recalled = Recalled()
    recalled.waited(RequestId(0x80), 2, 1.5)
    assert [recalled.waited_ms(f"{rid:016x}") for rid in (0x80, 0x81, 0x82)] == [1500.0, 1500.0, 0.0]


def test_every_choice_of_a_request_has_failed():
    recalled = Recalled()
    recalled.failed(RequestId(0x80), 2, "group_lost")
    assert [recalled.failure(f"{rid:016x}") for rid in (0x80, 0x81, 0x82)] == ["group_lost", "group_lost", ""]


def test_the_oldest_is_forgotten():
    recalled = Recalled()
    for rid in range(MOST + 1):
        recalled.waited(RequestId(rid), 1, 1.0)
        recalled.failed(RequestId(rid), 1, "group_lost")
    assert (recalled.waited_ms(f"{0:016x}"), recalled.failure(f"{0:016x}")) == (0.0, "")
    assert (recalled.waited_ms(f"{MOST:016x}"), recalled.failure(f"{MOST:016x}")) == (1000.0, "group_lost")


def test_the_last_attempt_of_a_failed_request_says_what_its_client_was_told():
    """Ranks that died with the request tell nothing of it."""
    found = [summary("b", 1, ""), summary("a", 2, ""), summary("a", 1, "group_lost"), summary("c", 1, "length")]
    say_why(found, lambda rid: {"a": "request_quarantined", "c": "never asked"}.get(rid, ""))
    assert [one.reason for one in found] == ["", "request_quarantined", "group_lost", "length"]


def summary(rid: str, attempt: int, reason: str) -> Summary:
    return Summary(rid, attempt, {}, "decoding", reason, 5, None, (0, 0), 0, 0, {})
