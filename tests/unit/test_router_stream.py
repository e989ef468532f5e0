"""One order out of two groups' tokens, and exactly one end."""

import itertools

import pytest
from byte_text import ByteDetokenizer
from hypothesis import given
from hypothesis import strategies as st

from router.errors import client_gone
from router.stream import Failed, Finished, Stream
from tandem.core.config import RoleName
from tandem.core.ids import RequestId, Room
from tandem.core.messages import Done, Token
from tandem.core.requests import Reason, Sampling, Work

P, D = RoleName.PREFILL, RoleName.DECODE
ROOM = Room(RequestId(5), 1)
EOS = 256


def stream(max_tokens: int = 100, stops: tuple[str, ...] = (), names: dict | None = None) -> Stream:
    work = Work(ROOM, (1,), max_tokens, (EOS,), Sampling(), None)
    return Stream(work, names or {P: "p0", D: "d0"}, 257, ByteDetokenizer(), stops)


def feed(one: Stream, data: bytes | list[int], first: int = 0, role: RoleName = D) -> str:
    return "".join(one.on_token(role, Token(ROOM, first + at, token)) for at, token in enumerate(data))


def code(one: Stream) -> str | None:
    return one.end.error.code if isinstance(one.end, Failed) else None


def test_decode_repeats_token_zero_and_it_is_delivered_once():
    one = stream()
    assert feed(one, b"h", role=P) + feed(one, b"hi") == "hi"
    assert (one.count, one.end) == (2, None)


def test_decode_may_be_first():
    one = stream()
    assert feed(one, b"hi") + feed(one, b"h", role=P) == "hi"


def test_another_attempt_is_not_heard():
    one = stream()
    other = Room(ROOM.rid, 2)
    assert one.on_token(P, Token(other, 0, 65)) == ""
    one.on_done(P, Done(other, Reason.QUEUE_FULL))
    assert (one.count, one.end) == (0, None)


@given(st.lists(st.integers(0, 9), max_size=40))
def test_duplicates_in_any_order_change_nothing(repeats: list[int]):
    one, text = stream(), ""
    data = b"0123456789"
    fresh = iter(range(len(data)))
    for index in itertools.chain(repeats, range(len(data))):
        if index <= one.count:
            text += one.on_token(D, Token(ROOM, index, data[index]))
    assert (text, one.count, one.end) == (data.decode(), len(data), None)
    assert next(fresh) == 0


def test_a_gap_is_the_groups_fault_and_ends_it():
    one = stream()
    assert feed(one, b"ab") + feed(one, b"z", first=3) == "ab"
    assert code(one) == "protocol_violation"
    assert "d0 sent token 3 after 2" in one.end.error.message


@pytest.mark.parametrize("token", [-1, 257, 2**40])
def test_a_token_that_does_not_exist_ends_it(token: int):
    one = stream()
    assert feed(one, [token]) == ""
    assert code(one) == "protocol_violation"


def test_the_end_of_sequence_counts_but_has_no_text():
    one = stream()
    assert feed(one, [*b"hi", EOS]) == "hi"
    assert (one.end, one.count) == (Finished("stop"), 3)


def test_the_limit_ends_it_and_incomplete_letters_are_shown_as_such():
    one = stream(max_tokens=2)
    assert feed(one, b"a\xc3") == "a�"
    assert one.end == Finished("length")


def test_the_end_of_sequence_at_the_limit_is_a_stop():
    one = stream(max_tokens=2)
    assert feed(one, [65, EOS]) == "A"
    assert one.end == Finished("stop")


def test_letters_are_never_cut():
    one = stream()
    assert [feed(one, [byte], first=at) for at, byte in enumerate("é".encode())] == ["", "é"]


def test_a_stop_string_is_found_over_tokens_and_not_delivered():
    one = stream(stops=("END",))
    assert feed(one, b"go EN") == "go "
    assert feed(one, b"D", first=5) == ""
    assert one.end == Finished("stop", by_stop_string=True)
    assert one.count == 6


def test_a_stop_string_in_the_last_token_is_found():
    one = stream(max_tokens=3, stops=("c",))
    assert feed(one, b"abc") == "ab"
    assert one.end == Finished("stop", by_stop_string=True)


def test_text_held_for_a_stop_string_comes_out_at_the_end():
    one = stream(max_tokens=2, stops=("bcd",))
    assert feed(one, b"ab") == "ab"
    assert one.end == Finished("length")


def test_nothing_follows_the_end():
    one = stream(max_tokens=1)
    feed(one, b"a")
    assert feed(one, b"b", first=1) == ""
    one.on_done(P, Done(ROOM, Reason.GROUP_LOST))
    one.fail(client_gone())
    one.no_reason_came()
    assert (one.end, one.count) == (Finished("length"), 1)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.PEER_ENDED])
@pytest.mark.parametrize("role", [P, D])
def test_a_groups_last_word_before_the_last_token_is_a_failure(reason: Reason, role: RoleName):
    """Even STOP and LENGTH: the tokens did not say so, and an abort is never called `length`."""
    one = stream()
    one.on_done(role, Done(ROOM, reason))
    assert isinstance(one.end, Failed)


@pytest.mark.parametrize(("first", "second"), [(P, D), (D, P)])
def test_peer_ended_waits_for_the_real_reason(first: RoleName, second: RoleName):
    one = stream()
    one.on_done(first, Done(ROOM, Reason.PEER_ENDED))
    one.on_done(first, Done(ROOM, Reason.PEER_ENDED))
    assert one.awaits_reason
    one.on_done(second, Done(ROOM, Reason.QUEUE_FULL))
    assert code(one) == "queue_full"
    assert not one.awaits_reason


def test_tokens_still_count_while_a_reason_is_awaited():
    one = stream()
    one.on_done(D, Done(ROOM, Reason.PEER_ENDED))
    assert feed(one, [EOS], role=P) == ""
    assert one.end == Finished("stop")


def test_two_groups_that_blame_each_other_are_lost():
    one = stream()
    one.on_done(P, Done(ROOM, Reason.PEER_ENDED))
    one.on_done(D, Done(ROOM, Reason.PEER_ENDED))
    assert code(one) == "group_lost"


def test_without_a_peer_nothing_is_awaited():
    one = stream(max_tokens=1, names={P: "p0"})
    one.on_done(P, Done(ROOM, Reason.PEER_ENDED))
    assert code(one) == "group_lost"


def test_a_reason_that_does_not_come_is_not_awaited_for_ever():
    one = stream()
    one.no_reason_came()
    assert one.end is None
    one.on_done(D, Done(ROOM, Reason.PEER_ENDED))
    one.no_reason_came()
    assert code(one) == "group_lost"
