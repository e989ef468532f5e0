"""More requests than the groups can take wait in the router, and whoever cannot is told before anything is begun."""

import asyncio
import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from waiting import DEADLINE_S

from router.beginning import INLINE_BYTES
from router.place import Place
from router.queue import Wish
from tandem.core.config import Limits

CHAT = "/v1/chat/completions"
NARROW = Limits(max_prefill_tokens=1, chunked_prefill_size=1)
"""Groups that are busy with four prompts."""


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


def queued(serving) -> int:
    return serving.get("/status", admin=True)[1]["queued"]


def check(answer, status: int, code: str) -> dict[str, str]:
    """The error is this one; its headers."""
    got, headers, payload = answer
    assert (got, json.loads(payload)["error"]["code"], headers["x-tandem-error-code"]) == (status, code, code)
    return headers


def test_one_more_than_may_be_at_the_groups_waits_for_its_turn(start, kinds, until):
    serving = start(max_concurrent_requests=1)
    serving.double.play(hold_at=0)
    with serving.open_stream(), ThreadPoolExecutor(1) as pool:
        serving.double.wait_for(kinds.submit, count=2)
        waiting = pool.submit(serving.post, CHAT, body())
        until(lambda: queued(serving) == 1)
        assert len(serving.double.wait_for(kinds.submit)) == 2
        serving.double.go()
        assert waiting.result()[0] == 200
    serving.wait_at_rest()
    assert queued(serving) == 0


def test_groups_that_are_busy_get_no_more_until_they_are_less_so(start, kinds, until):
    serving = start(NARROW)
    serving.double.play(hold_at=0)
    with ThreadPoolExecutor(7) as pool:
        answers = [pool.submit(serving.post, CHAT, body()) for _ in range(7)]
        until(lambda: queued(serving) == 3)
        assert len(serving.double.wait_for(kinds.submit, kinds.prefill, 4)) == 4
        serving.double.go()
        assert [answer.result()[0] for answer in answers] == [200] * 7
    serving.wait_at_rest()


def test_who_waits_too_long_gets_a_408_and_no_group_has_heard_of_it(start, kinds):
    serving = start(max_concurrent_requests=1, queue_timeout_s=0.3)
    serving.double.play(hold_at=0)
    with serving.open_stream():
        serving.double.wait_for(kinds.submit, count=2)
        headers = check(serving.post(CHAT, body()), 408, "queue_timeout")
        assert int(headers["retry-after"]) >= 1
        assert len(serving.double.wait_for(kinds.submit)) == 2
    serving.wait_at_rest()


def test_the_deadline_of_a_request_holds_while_it_waits(start, kinds):
    serving = start(max_concurrent_requests=1, request_timeout_s=1.0)
    serving.double.play(hold_at=0)
    with serving.open_stream():
        serving.double.wait_for(kinds.submit, count=2)
        check(serving.post(CHAT, body()), 504, "deadline_exceeded")
    serving.wait_at_rest()


def test_a_client_that_leaves_while_it_waits_is_noticed(start, kinds, until):
    serving = start(max_concurrent_requests=1)
    serving.double.play(hold_at=0)
    with serving.open_stream():
        serving.double.wait_for(kinds.submit, count=2)
        with serving.open_stream():
            until(lambda: queued(serving) == 1)
        until(lambda: queued(serving) == 0)
        serving.double.go()
    serving.wait_at_rest()
    assert len(serving.double.wait_for(kinds.submit)) == 2


def test_a_router_that_is_told_to_end_sends_those_away_that_wait(start, kinds, until):
    serving = start(max_concurrent_requests=1)
    serving.double.play(hold_at=0)
    with serving.open_stream() as line, ThreadPoolExecutor(1) as pool:
        serving.double.wait_for(kinds.submit, count=2)
        waiting = pool.submit(serving.post, CHAT, body())
        until(lambda: queued(serving) == 1)
        serving.router.stop()
        check(waiting.result(), 503, "shutting_down")
        serving.double.go()
        assert b"[DONE]" in kinds.read_all(line)


def test_one_more_than_the_queue_holds_is_told_when_to_come_again(start, kinds, until):
    serving = start(max_concurrent_requests=1, queue_size=1)
    serving.double.play(hold_at=0)
    with serving.open_stream(), ThreadPoolExecutor(1) as pool:
        serving.double.wait_for(kinds.submit, count=2)
        waiting = pool.submit(serving.post, CHAT, body())
        until(lambda: queued(serving) == 1)
        headers = check(serving.post(CHAT, body()), 429, "queue_full")
        assert int(headers["retry-after"]) >= 1
        serving.double.go()
        assert waiting.result()[0] == 200
    serving.wait_at_rest()


def test_an_urgent_request_goes_first(start, kinds, until):
    serving = start(max_concurrent_requests=1)
    serving.double.play(hold_at=0)
    with serving.open_stream(), ThreadPoolExecutor(2) as pool:
        serving.double.wait_for(kinds.submit, count=2)
        asked = [pool.submit(serving.post, CHAT, body(max_tokens=1))]
        until(lambda: queued(serving) == 1)
        asked.append(pool.submit(serving.post, CHAT, body(priority=50, max_tokens=1)))
        until(lambda: queued(serving) == 2)
        serving.double.go()
        assert [each.result()[0] for each in asked] == [200, 200]
    submits = serving.double.wait_for(kinds.submit, kinds.prefill, 3)
    assert [submit.work.priority for submit in submits] == [0, 50, 0]


def test_where_no_group_serves_nobody_waits_in_vain(start):
    serving = start(registered=False)
    check(serving.post(CHAT, body()), 503, "no_prefill")


@pytest.mark.parametrize("stream", [False, True])
def test_many_at_once_through_a_narrow_door_are_all_answered(start, stream: bool):
    serving = start(NARROW, max_concurrent_requests=2)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: serving.post(CHAT, body(stream=stream)), range(48)))
    assert {status for status, _, _ in answers} == {200}
    with contextlib.suppress(json.JSONDecodeError):
        assert stream or json.loads(answers[0][2])["choices"]
    serving.wait_at_rest()


WIDE = {"model": "tiny", "prompt": [[100 + number] for number in range(20)], "max_tokens": 3}


def test_a_wide_request_goes_to_the_groups_in_portions_and_is_answered_whole(start, kinds, until):
    serving = start(NARROW)
    serving.double.play(hold_at=0)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(serving.post, "/v1/completions", WIDE)
        until(lambda: queued(serving) == 1)
        assert len(serving.double.wait_for(kinds.submit, kinds.prefill, 8)) == 8
        serving.double.go()
        status, _, payload = answer.result()
    choices = json.loads(payload)["choices"]
    assert (status, [choice["index"] for choice in choices]) == (200, list(range(20)))
    assert {choice["text"] for choice in choices} == {"hel"}
    submits = serving.double.wait_for(kinds.submit, kinds.prefill, 20)
    assert [[*submit.work.prompt] for submit in submits] == WIDE["prompt"]
    serving.wait_at_rest()


def test_a_client_that_leaves_before_all_portions_have_begun_ends_them_all(start, kinds, until):
    serving = start(NARROW)
    serving.double.play(hold_at=0)
    with serving.open_post("/v1/completions", WIDE | {"stream": True}):
        until(lambda: queued(serving) == 1)
    until(lambda: queued(serving) == 0)
    serving.wait_at_rest()
    assert len(serving.double.wait_for(kinds.submit, kinds.prefill, 8)) == 8


def test_a_client_that_leaves_while_its_body_waits_for_a_thread_is_noticed(start, until):
    serving = start()
    release, pool = threading.Event(), serving.router.service.pool
    for _ in range(2):
        pool.submit(release.wait)
    long = "x" * (INLINE_BYTES + 1)
    with contextlib.ExitStack() as stack:
        stack.callback(release.set)
        with serving.open_stream(messages=[{"role": "user", "content": long}]):
            until(lambda: admitted(serving) == 1)
        until(lambda: admitted(serving) == 0)
    serving.wait_at_rest()


def admitted(serving) -> int:
    return serving.get("/status", admin=True)[1]["admitted"]


@pytest.mark.parametrize("stream", [False, True])
def test_choices_that_find_no_group_any_more_end_the_answer_with_the_reason(start, kinds, until, stream: bool):
    serving = start(NARROW)
    serving.double.play(hold_at=0)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(serving.post, "/v1/completions", WIDE | {"stream": stream})
        until(lambda: queued(serving) == 1)
        assert serving.order("d0/drain")[0] == 202
        status, _, payload = answer.result()
    assert (status, json.loads(payload)["error"]["code"]) == (503, "draining")
    serving.wait_at_rest()


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_fits_nowhere_is_refused_before_the_others_are_answered(start, kinds, stream: bool):
    """Though its turn would only come when the first ones had been computed."""
    serving = start(NARROW)
    serving.double.play(hold_at=0)
    prompts = [*WIDE["prompt"][:15], [97] * 9000, *WIDE["prompt"][16:]]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(serving.post, "/v1/completions", WIDE | {"prompt": prompts, "stream": stream})
        with contextlib.suppress(TimeoutError):
            answer.result(DEADLINE_S)
        held = not answer.done()
        serving.double.go()
        status, _, payload = answer.result()
    assert (status, held) == (400, False), payload
    assert json.loads(payload)["error"]["code"] == "context_length_exceeded"
    serving.wait_at_rest()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_in_the_moment_of_its_next_turn_leaves_nothing(
    start, kinds, until, monkeypatch, stream: bool
):
    """All choices that have begun are over by then, so none of them ends for its leaving."""
    turn, left = Place.turn, threading.Event()

    async def turn_late(place: Place, wish: Wish, deadline: float) -> None:
        while wish.goes_on and not left.is_set():
            await asyncio.sleep(0.01)
        await turn(place, wish, deadline)

    monkeypatch.setattr(Place, "turn", turn_late)
    serving = start()
    with serving.open_post("/v1/completions", WIDE | {"stream": stream}) as line:
        lost = kinds.calls_of(monkeypatch, line, "connection_lost")
        until(lambda: serving.get("/requests", admin=True)[1] == {"open": 0, "admitted": 1, "coming": 0})
        assert len(serving.double.wait_for(kinds.submit, kinds.prefill)) == 8
    until(lambda: lost)
    left.set()
    serving.wait_at_rest()
