"""Stop strings are found wherever the text is cut, as a plain search of the whole text finds them."""

from hypothesis import given
from hypothesis import strategies as st

from router.stops import Stops

LETTERS = st.text("ab ", max_size=24)


def plain_search(text: str, stops: list[str]) -> tuple[str, bool]:
    """The same by looking at every end, one after the other."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(st.lists(LETTERS, max_size=12), st.lists(st.text("ab ", min_size=1, max_size=5), max_size=4))
def test_the_cuts_do_not_matter(pieces: list[str], stops: list[str]):
    finder = Stops(stops)
    delivered = "".join(finder.push(piece) for piece in pieces)
    delivered += finder.finish()
    assert (delivered, finder.hit) == plain_search("".join(pieces), stops)


@given(st.lists(LETTERS, max_size=12), st.lists(st.text("ab ", min_size=1, max_size=5), min_size=1, max_size=4))
def test_nothing_is_held_that_cannot_become_a_stop_string(pieces: list[str], stops: list[str]):
    finder, text, delivered = Stops(stops), "", ""
    for piece in pieces:
        text += piece
        delivered += finder.push(piece)
        if finder.hit:
            return
        held = text[len(delivered) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_without_stop_strings_everything_goes_through():
    finder = Stops([])
    assert (finder.push("abc"), finder.finish(), finder.hit) == ("abc", "", False)


def test_after_a_hit_nothing_goes_through():
    finder = Stops(["stop"])
    assert finder.push("go st") == "go "
    assert finder.push("op and on") == ""
    assert finder.hit
    assert (finder.push("more"), finder.finish()) == ("", "")
