"""Log-probabilities go with the text that they belong to, whatever holds the text back."""

from byte_text import ByteDetokenizer
from desk import OTHER_PAIR, PAIR
from hypothesis import given
from hypothesis import strategies as st

from router.attempt import Attempt
from router.stream import Failed, Finished, Stream
from tandem.core.config import RoleName
from tandem.core.ids import RequestId, Room
from tandem.core.messages import Token
from tandem.core.requests import Logprobs, Sampling, Work

D = RoleName.DECODE
ROOM = Room(RequestId(5), 1)
EOS = 256


def scored(stops: tuple[str, ...] = (), max_tokens: int = 100) -> Stream:
    work = Work(ROOM, (1,), max_tokens, (EOS,), Sampling(logprobs=0), None)
    return Stream(Attempt(work, PAIR), 257, ByteDetokenizer(), stops)


def told(one: Stream, data: bytes | list[int]) -> list[tuple[str, list[int]]]:
    """Each piece of text, with the tokens that are told with it; at a good end, what is left."""
    pieces = []
    for index, token in enumerate(data):
        if text := one.on_token(D, Token(ROOM, one.count, token, Logprobs(-float(index)))):
            pieces.append((text, [each.token for each in one.scores.take(len(text))]))
    if isinstance(one.end, Finished) and not one.end.by_stop_string:
        pieces.append(("", [each.token for each in one.scores.rest()]))
    return pieces


def test_each_token_goes_with_its_text_and_the_end_of_sequence_is_not_told():
    assert told(scored(), [65, 66, EOS]) == [("A", [65]), ("B", [66]), ("", [])]


def test_parts_of_a_letter_go_with_the_letter():
    assert told(scored(), "aé".encode()) == [("a", [97]), ("é", [0xC3, 0xA9])]
    assert told(scored(max_tokens=2), b"a\xc3") == [("a", [97]), ("�", [0xC3]), ("", [])]
    assert told(scored(), [0xC3, EOS]) == [("�", [0xC3]), ("", [])]


def test_what_is_held_for_a_stop_string_goes_with_what_releases_it():
    assert told(scored(("END",)), b"aENx") == [("a", [97]), ("ENx", [69, 78, 120])]


def test_a_stop_string_cuts_the_tokens_where_it_cuts_the_text():
    one = scored(("END",))
    assert told(one, b"goEND") == [("g", [103]), ("o", [111])]
    assert one.end == Finished("stop", by_stop_string=True)


def test_tokens_without_text_are_told_at_the_latest_at_the_end():
    work = Work(ROOM, (1,), 3, (), Sampling(logprobs=0), None)
    one = Stream(Attempt(work, PAIR), 257, ByteDetokenizer(), ())
    assert told(one, [EOS, 65, EOS]) == [("A", [EOS, 65]), ("", [EOS])]


def test_offsets_are_those_of_the_text():
    one = scored(max_tokens=4)
    for index, token in enumerate("aéb".encode()):
        one.on_token(D, Token(ROOM, index, token, Logprobs(0.0)))
    assert [each.start for each in one.scores.take(3)] == [0, 1, 1, 2]


def test_a_token_without_its_logprobs_is_the_groups_fault():
    one = scored()
    assert one.on_token(D, Token(ROOM, 0, 65)) == ""
    assert isinstance(one.end, Failed)
    assert "without its log-probabilities" in one.end.error.message


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=2))
def test_the_tokens_told_are_those_that_made_the_text(text: str, stops: list[str]):
    data = text.encode()
    one = scored(tuple(stops), max_tokens=len(data) + 1)
    pieces = told(one, [*data, EOS])
    tokens = [token for _, tokens in pieces for token in tokens]
    assert bytes(tokens).decode() == "".join(piece for piece, _ in pieces)


def test_what_was_cached_is_what_the_first_attempt_found():
    one = scored()
    one.on_token(D, Token(ROOM, 0, 65, Logprobs(0.0), 0))
    one.on_token(D, Token(ROOM, 0, 65, Logprobs(0.0), 48))
    one.go_on(OTHER_PAIR)
    assert one.attempt.work.generated == 1
    one.on_token(D, Token(one.attempt.room, 0, 66, Logprobs(0.0), 64))
    assert one.cached == 48
