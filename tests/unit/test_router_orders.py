"""What an operator may tell a group, up to the message that carries it."""

import msgspec
import pytest

from router.errors import ApiError
from router.orders import KnobsBody, control_of, knobs_of, words
from tandem.core.config import MAX_TICK_TOKENS, Limits
from tandem.core.inputs import Control, Knobs, Order
from tandem.core.messages import ToGroup

LIMITS = Limits(max_prefill_tokens=MAX_TICK_TOKENS)
HUGE = [MAX_TICK_TOKENS + 1, 2**63, 2**64, 10**400, f"1{'0' * 5000}"]


@pytest.mark.parametrize("field", KnobsBody.__struct_fields__)
@pytest.mark.parametrize("number", HUGE, ids=["one more", "2**63", "2**64", "10**400", "10**5000"])
def test_a_number_that_no_group_could_be_started_with_is_refused_by_name(field: str, number: object):
    with pytest.raises(ApiError) as refused:
        knobs_of(f'{{"{field}": {number}}}'.encode(), LIMITS)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_value", field)


@pytest.mark.parametrize("field", KnobsBody.__struct_fields__)
def test_what_is_taken_arrives(field: str):
    for number in (1, MAX_TICK_TOKENS):
        knobs = knobs_of(f'{{"{field}": {number}}}'.encode(), LIMITS)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(knobs), type=ToGroup) == Knobs(**{field: number})


@pytest.mark.parametrize("field", Knobs.__struct_fields__)
def test_knobs_beyond_the_bounds_are_no_message(field: str):
    for number in (0, MAX_TICK_TOKENS + 1):
        knobs = Knobs(**{field: (number,) if field == "chunk_table" else number})
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(knobs), type=ToGroup)


def test_a_release_names_the_peer_it_is_about():
    assert control_of("release", "p0") == Control(Order.RELEASE, "p0")


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Control(Order.PAUSE), "pause"),
        (Control(Order.RELEASE, "p0"), "release p0"),
        (Knobs(max_prefill_tokens=64), "max_prefill_tokens 64"),
    ],
)
def test_the_log_says_an_order_as_the_operator_did(order: Control | Knobs, said: str):
    assert words(order) == said


@pytest.mark.parametrize(("order", "peer"), [("release", ""), ("pause", "p0")])
def test_an_order_about_no_peer_or_the_wrong_one_is_refused_by_name(order: str, peer: str):
    with pytest.raises(ApiError) as refused:
        control_of(order, peer)
    assert (refused.value.status, refused.value.param) == (400, "peer")
