"""One order out of two groups' tokens, and exactly one end."""

import itertools

import pytest
from byte_text import ByteDetokenizer
from hypothesis import given
from hypothesis import strategies as st

from router.attempt import Attempt
from router.errors import client_gone
from router.placement import Route
from router.stream import Failed, Finished, Stream
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId, RequestId, Room
from tandem.core.members import Member
from tandem.core.messages import Done, Portion, Token
from tandem.core.requests import Reason, Sampling, Work

P, D = RoleName.PREFILL, RoleName.DECODE
ROOM = Room(RequestId(5), 1)
EOS = 256


def route(*names: str) -> Route:
    roles = {"p": RoleName.PREFILL, "d": RoleName.DECODE, "c": RoleName.COLOCATED}
    groups = [Group(roles[name[0]], name, (1,)) for name in names]
    return Route(tuple(Member(group, RankId(0), 1, 1, "h", "f", "m", "", "", "", Limits()) for group in groups))


def stream(max_tokens: int = 100, stops: tuple[str, ...] = (), names: tuple[str, ...] = ("p0", "d0")) -> Stream:
    work = Work(ROOM, (1,), max_tokens, (EOS,), Sampling(), None)
    return Stream(Attempt(work, route(*names)), 257, ByteDetokenizer(), stops)


def feed(one: Stream, data: bytes | list[int], first: int = 0, role: RoleName = D, room: Room = ROOM) -> str:
    return "".join(one.on_token(role, Token(room, first + at, token)) for at, token in enumerate(data))


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


@given(st.binary(min_size=1, max_size=40), st.lists(st.integers(0, 40), max_size=5), st.integers(1, 45), st.data())
def test_portions_say_what_their_tokens_say(text: bytes, cuts: list[int], max_tokens: int, data: st.DataObject):
    tokens = [*text, EOS] if data.draw(st.booleans()) else list(text)
    stops = ("ab",) if data.draw(st.booleans()) else ()
    by_token, by_portion = stream(max_tokens, stops), stream(max_tokens, stops)
    told = ""
    for first, last in itertools.pairwise([0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]):
        known = data.draw(st.integers(0, first))  # what is told again changes nothing
        told += by_portion.on_portion(D, Portion(ROOM, known, tuple(tokens[known:last])))
    assert told == feed(by_token, tokens)
    assert by_portion.end == by_token.end
    assert stops or by_portion.count == by_token.count


def test_a_portion_after_a_gap_is_the_groups_fault():
    one = stream()
    assert feed(one, b"h") + one.on_portion(D, Portion(ROOM, 2, (65,))) == "h"
    assert code(one) == "protocol_violation"


def test_a_portion_with_a_token_that_does_not_exist_ends_it():
    one = stream()
    assert one.on_portion(D, Portion(ROOM, 0, (65, 257))) == ""
    assert code(one) == "protocol_violation"


def test_a_portion_of_another_attempt_is_not_heard():
    one = stream()
    assert one.on_portion(D, Portion(Room(ROOM.rid, 2), 0, (65,))) == ""
    assert (one.count, one.end) == (0, None)


def test_who_asked_for_log_probabilities_takes_no_portion():
    work = Work(ROOM, (1,), 9, (EOS,), Sampling(logprobs=0), None)
    one = Stream(Attempt(work, route("p0", "d0")), 257, ByteDetokenizer(), ())
    assert one.on_portion(D, Portion(ROOM, 0, (65,))) == ""
    assert code(one) == "protocol_violation"


def test_prefill_is_needed_no_more_once_decode_has_told_a_token():
    one = stream()
    feed(one, b"h", role=P)
    assert one.needs(P)
    feed(one, b"h")
    assert (one.needs(P), one.needs(D)) == (False, True)


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
    one = stream(max_tokens=1)
    one.on_done(P, Done(ROOM, Reason.PEER_ENDED))
    assert code(one) == "group_lost"


SECOND, THIRD = Room(ROOM.rid, 2), Room(ROOM.rid, 3)


def test_another_attempt_goes_on_where_the_first_one_stood():
    one = stream(max_tokens=6)
    assert feed(one, b"ab") == "ab"
    left = one.remaining()
    assert (left.room, left.prompt, left.max_tokens) == (SECOND, (1, *b"ab"), 4)
    one.go_on(route("p1", "d1"))
    assert feed(one, b"c", role=P, room=SECOND) + feed(one, b"cd", room=SECOND) == "cd"
    one.go_on(route("p0", "d0"))
    assert one.attempt.work.prompt == (1, *b"abcd")
    assert feed(one, b"ef", room=THIRD) == "ef"
    assert (one.end, one.count) == (Finished("length"), 6)


def test_what_the_groups_of_an_earlier_attempt_still_say_is_not_heard():
    one = stream()
    feed(one, b"ab")
    one.go_on(route("p0", "d0"))
    assert feed(one, b"x", first=2) == ""
    one.on_done(D, Done(ROOM, Reason.GROUP_LOST))
    one.on_done(P, Done(ROOM, Reason.PEER_ENDED))
    assert (one.count, one.end, one.awaits_reason) == (2, None, False)


def test_a_gap_in_a_later_attempt_is_named_by_its_own_count():
    one = stream()
    feed(one, b"ab")
    one.go_on(route("p1", "d1"))
    feed(one, b"z", first=1, room=SECOND)
    assert code(one) == "protocol_violation"
    assert "d1 sent token 1 after 0 tokens" in one.end.error.message


def test_stop_strings_and_letters_are_found_over_attempts():
    one = stream(stops=("END",))
    assert feed(one, b"go EN") == "go "
    one.go_on(route("p0", "d0"))
    assert feed(one, b"D", room=SECOND) == ""
    assert one.end == Finished("stop", by_stop_string=True)
    one = stream()
    assert feed(one, "é".encode()[:1]) == ""
    one.go_on(route("p0", "d0"))
    assert feed(one, "é".encode()[1:], room=SECOND) == "é"
    one = stream(stops=("END",), max_tokens=6)
    assert feed(one, b"go EN") == "go "
    one.go_on(route("p0", "d0"))
    assert feed(one, b"T", room=SECOND) == "ENT", "it was only text"
    assert one.end == Finished("length")


def test_a_new_attempt_needs_its_prefill_group_again():
    one = stream()
    feed(one, b"abc")
    assert (one.needs(P), one.needs(D)) == (False, True)
    one.go_on(route("p0", "d0"))
    assert (one.needs(P), one.needs(D)) == (True, True)
    one.fail(client_gone())
    assert (one.needs(P), one.needs(D)) == (False, False)


def test_one_group_that_does_both_needs_no_other():
    one = stream(max_tokens=2, names=("c0",))
    assert feed(one, b"ab", role=RoleName.COLOCATED) == "ab"
    assert (one.end, one.handed_over) == (Finished("length"), False)
    one = stream(names=("c0",))
    one.on_done(RoleName.COLOCATED, Done(ROOM, Reason.QUEUE_FULL))
    assert code(one) == "queue_full"
    assert "colocated group c0" in one.end.error.message
