"""What an operator tells a group by way of the router, and what that means for new requests."""

import json

import pytest

from tandem.control import control
from tandem.core.config import Limits
from tandem.core.errors import ConfigError
from tandem.core.inputs import Order

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def error_of(answer) -> tuple[int, str, str | None]:
    status, body = answer
    return status, body["error"]["code"], body["error"]["param"]


@pytest.mark.parametrize("order", ["pause", "flush", "resume"])
def test_an_order_reaches_its_group_and_no_other(serving, kinds, order):
    assert serving.order(f"d0/{order}") == (202, {"group": "d0", "order": order})
    assert serving.double.wait_for(kinds.control) == [kinds.control(Order(order))]
    assert [group for group, _ in serving.double.seen] == [kinds.decode]


def test_a_command_reaches_the_admin_port_and_is_told_when_it_is_the_other_one(serving, kinds):
    assert control(Order.FLUSH.value, kinds.prefill, serving.admin_url) == 0
    serving.double.wait_for(kinds.control, kinds.prefill)
    with pytest.raises(ConfigError, match="a router's port for clients answers there; give the admin_url"):
        control(Order.FLUSH.value, kinds.prefill, serving.url)
    with pytest.raises(ConfigError, match="the router refuses: there is no group 'x9'"):
        control(Order.FLUSH.value, "x9", serving.admin_url)


def test_a_group_that_drains_gets_nothing_new_until_it_resumes(start, kinds):
    serving = start()
    assert serving.order("d0/drain")[0] == 202
    status, _, payload = serving.post(CHAT, BODY)
    assert (status, json.loads(payload)["error"]["code"]) == (503, "draining")
    assert serving.get("/readyz")[1]["error"]["code"] == "draining"
    states = {worker["name"]: worker["state"] for worker in serving.get("/workers", admin=True)[1]["workers"]}
    assert states == {"p0": "usable", "d0": "draining"}
    assert serving.order("d0/resume")[0] == 202
    assert serving.post(CHAT, BODY)[0] == 200


def test_knobs_reach_their_group(serving, kinds):
    status, body = serving.order("p0/knobs", {"max_prefill_tokens": 64, "chunked_prefill_size": None})
    assert (status, body) == (202, {"group": "p0", "max_prefill_tokens": 64, "chunked_prefill_size": None})
    serving.order("p0/knobs", {"chunked_prefill_size": 1})
    told = serving.double.wait_for(kinds.knobs, kinds.prefill, count=2)
    assert told == [kinds.knobs(max_prefill_tokens=64), kinds.knobs(chunked_prefill_size=1)]


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("x9/pause", None, (404, "unknown_group", "group")),
        ("x9/knobs", {"chunked_prefill_size": 1}, (404, "unknown_group", "group")),
        ("d0/release?peer=d0", None, (404, "unknown_peer", "peer")),
        ("x9/release?peer=p0", None, (404, "unknown_group", "group")),
        ("p0/explode", None, (400, "unknown_order", "order")),
        ("p0/knobs", {}, (400, "missing_required_parameter", None)),
        ("p0/knobs", b"{", (400, "invalid_json", None)),
        ("p0/knobs", {"max_prefill_tokens": 0}, (400, "invalid_value", "max_prefill_tokens")),
        ("p0/knobs", {"max_prefill_tokens": 2**64}, (400, "invalid_value", "max_prefill_tokens")),
        ("p0/knobs", {"chunked_prefill_size": 2**64}, (400, "invalid_value", "chunked_prefill_size")),
        ("p0/knobs", {"chunked_prefill_size": "many"}, (400, "invalid_type", "chunked_prefill_size")),
        ("p0/knobs", {"chunk_table": [1]}, (400, "unknown_parameter", "chunk_table")),
        (
            "p0/knobs",
            {"max_prefill_tokens": Limits().max_prefill_tokens + 1},
            (400, "invalid_value", "max_prefill_tokens"),
        ),
    ],
)
def test_what_is_wrong_with_an_order_is_named(serving, path, body, error):
    assert error_of(serving.order(path, body)) == error
    assert serving.double.seen == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("evict_after", [4, 7])
def test_a_request_that_loses_its_pages_goes_on_where_it_stood(serving, kinds, evict_after, stream):
    serving.double.play(evict_after=evict_after)
    with serving.client() as client:
        answer = client.chat.completions.create(**BODY, stream=stream)
        texts = [chunk.choices[0].delta.content for chunk in answer] if stream else [answer.choices[0].message.content]
    assert "".join(text or "" for text in texts) == "hello world"
    attempts = [submit.work.room.attempt for submit in serving.double.wait_for(kinds.submit, kinds.prefill)]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(attempts) > 1


def test_a_request_that_loses_its_pages_again_and_again_is_told_so(serving):
    serving.double.play(evict_after=1)
    status, _, payload = serving.post(CHAT, BODY)
    assert (status, json.loads(payload)["error"]["code"]) == (503, "overloaded")
