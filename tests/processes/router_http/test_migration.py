"""Groups that go while they work for a client, where there are others: the client sees nothing of it."""

import json
import threading
from collections.abc import Callable

import openai
import pytest
from waiting import DEADLINE_S

from tandem.core.requests import Reason

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
GREEDY = {**BODY, "temperature": 0}
PROMPT = len("user: hi\n")


def vanish(serving, group: str) -> None:
    serving.router.group_lost(group, "rank 1 exited with -9")


def hang_up(serving, group: str) -> None:
    serving.double.end(group)


def say_lost(serving, group: str) -> None:
    serving.double.end(group, Reason.GROUP_LOST)


def say_left(serving, group: str) -> None:
    serving.double.end(group, Reason.GROUP_LEFT)


WAYS = [vanish, hang_up, say_lost, say_left]


def groups_of(serving, kinds, attempt: int) -> list[str]:
    """Prefill and decode group of an attempt, once both have it."""

    def found() -> list[str]:
        seen = [(group, m.work.room) for group, m in serving.double.seen if isinstance(m, kinds.submit)]
        return [group for group, room in seen if room.attempt == attempt]

    serving.double.wait_for(kinds.submit, count=2 * attempt)
    return sorted(found(), reverse=True)


def asking(serving, body: dict) -> tuple[threading.Thread, list]:
    answers: list = []
    thread = threading.Thread(target=lambda: answers.append(serving.post(CHAT, body)))
    thread.start()
    return thread, answers


@pytest.mark.parametrize("role", [0, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("way", WAYS)
def test_before_the_first_byte(start, kinds, way: Callable, role: int):
    serving = start(pairs=2)
    serving.double.play(hold_at=0)
    thread, answers = asking(serving, BODY)
    pair = groups_of(serving, kinds, 1)
    way(serving, pair[role])
    groups_of(serving, kinds, 2)
    serving.double.go()
    thread.join()
    status, _, payload = answers[0]
    answer = json.loads(payload)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "hello world")
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (PROMPT, 12, PROMPT + 12)
    assert pair[role] not in groups_of(serving, kinds, 2)


@pytest.mark.parametrize("way", WAYS)
def test_in_the_middle_of_a_stream(start, kinds, way: Callable, until):
    serving = start(pairs=2)
    serving.double.play(hold_at=5)
    with serving.client() as client:
        options = {"include_usage": True}
        stream = client.chat.completions.create(**BODY, stream=True, stream_options=options)
        chunks = [next(stream) for _ in range(6)]
        lost = groups_of(serving, kinds, 1)[1]
        way(serving, lost)
        again = groups_of(serving, kinds, 2)
        serving.double.go()
        chunks += stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hello world"
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (PROMPT, 12)
    assert lost not in again
    resent = [m.work for m in serving.double.wait_for(kinds.submit) if m.work.room.attempt == 2]
    assert {bytes(work.prompt) for work in resent} == {b"user: hi\nhello"}
    status = serving.get("/status", admin=True)[1]
    assert (status["migrated"], status["quarantined"]) == (1, 0)
    assert lost not in serving.usable()
    serving.double.start_over()
    serving.wait_usable(4)


def test_a_group_that_says_goodbye_gets_nothing_new_although_the_registry_still_has_it(start, kinds):
    serving = start(pairs=2)
    serving.double.play(hold_at=0)
    thread, _ = asking(serving, BODY)
    left = groups_of(serving, kinds, 1)[1]
    serving.double.end(left, Reason.GROUP_LEFT)
    groups_of(serving, kinds, 2)
    causes = {worker["name"]: worker["cause"] for worker in serving.get("/workers", admin=True)[1]["workers"]}
    assert causes[left] == "it was told to end"
    serving.double.go()
    thread.join()
    serving.double.play()
    assert [serving.post(CHAT, BODY)[0] for _ in range(4)] == [200] * 4
    assert left not in [group for group, message in serving.double.seen if isinstance(message, kinds.submit)]


def test_both_groups_of_a_pair_at_once(start, kinds):
    serving = start(pairs=2)
    serving.double.play(hold_at=4)
    with serving.client() as client:
        stream = client.chat.completions.create(**GREEDY, stream=True)
        chunks = [next(stream) for _ in range(5)]
        pair = groups_of(serving, kinds, 1)
        for group in pair:
            vanish(serving, group)
        groups_of(serving, kinds, 2)
        serving.double.go()
        chunks += stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello world"
    assert not set(pair) & set(serving.usable())


def test_a_silent_group(start, kinds):
    serving = start(pairs=2, timer_scale=0.5)
    serving.double.play(hold_at=0)
    thread, answers = asking(serving, BODY)
    pair = groups_of(serving, kinds, 1)
    serving.double.silent.add(pair[1])
    assert pair[1] not in groups_of(serving, kinds, 2)
    serving.double.go()
    thread.join()
    assert answers[0][0] == 200
    serving.double.silent.clear()
    serving.wait_usable(4)


def test_a_group_that_drains_is_left_for_another(start, kinds):
    serving = start(pairs=2)
    serving.double.play(refuse={"d0": Reason.DRAINING})
    assert [serving.post(CHAT, BODY)[0] for _ in range(4)] == [200] * 4
    refused = [m.work.room.attempt for m in serving.double.wait_for(kinds.submit, "d0")]
    assert refused, "it was asked"
    assert set(refused) == {1}, "and never twice for one request"


def test_where_every_group_drains_it_is_told(start, kinds):
    serving = start(pairs=2)
    serving.double.play(refuse={"d0": Reason.DRAINING, "d1": Reason.DRAINING})
    status, headers, payload = serving.post(CHAT, BODY)
    assert (status, json.loads(payload)["error"]["code"], headers["retry-after"]) == (503, "draining", "1")
    assert len(serving.double.wait_for(kinds.submit)) == 4


def test_a_client_that_leaves_afterwards_is_noticed_by_the_new_groups(start, kinds):
    serving = start(pairs=2)
    serving.double.play(hold_at=3)
    with serving.open_stream():
        vanish(serving, groups_of(serving, kinds, 1)[1])
        groups_of(serving, kinds, 2)
    gone = [(c.room.attempt, c.reason) for c in serving.double.wait_for(kinds.cancel, count=4)]
    assert gone.count((2, Reason.CLIENT_GONE)) == 2
    serving.wait_at_rest()


def test_the_deadline_stays(start, kinds):
    serving = start(pairs=2, request_timeout_s=5.0)
    serving.double.play(hold_at=0)
    thread, answers = asking(serving, BODY)
    vanish(serving, groups_of(serving, kinds, 1)[1])
    groups_of(serving, kinds, 2)
    thread.join()
    assert (answers[0][0], json.loads(answers[0][2])["error"]["code"]) == (504, "deadline_exceeded")
    assert all(m.remaining_ms < 5000 for m in serving.double.wait_for(kinds.submit) if m.work.room.attempt == 2)


def test_with_no_pair_left_the_stream_ends_with_the_cause(start, kinds):
    serving = start(pairs=2)
    serving.double.play(hold_at=3)
    with serving.client() as client:
        stream = client.chat.completions.create(**BODY, stream=True)
        chunks = [next(stream) for _ in range(4)]
        for group in ("d0", "d1"):
            serving.double.end(group, Reason.GROUP_LEFT)
        with pytest.raises(openai.APIError, match=r"d[01] was lost: .*; and it can go on nowhere else") as raised:
            chunks.extend(stream)
    assert raised.value.code == "group_lost"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)


def test_a_request_that_two_groups_did_not_survive_is_not_tried_again(start, kinds):
    serving = start(pairs=3)
    serving.double.play(hold_at=0)
    thread, answers = asking(serving, GREEDY)
    for attempt in (1, 2):
        serving.double.end(groups_of(serving, kinds, attempt)[1], Reason.GROUP_LOST)
    thread.join()
    status, headers, payload = answers[0]
    assert (status, json.loads(payload)["error"]["code"]) == (500, "request_quarantined")
    assert headers["x-should-retry"] == "false"
    serving.double.play()
    status, headers, payload = serving.post("/v1/chat/completions", GREEDY)
    assert (status, json.loads(payload)["error"]["code"]) == (500, "request_quarantined")
    assert 500 < int(headers["retry-after"]) <= 600
    assert f"try again in {headers['retry-after']} s" in json.loads(payload)["error"]["message"]
    assert not [m for _, m in serving.double.seen if isinstance(m, kinds.submit)], "no group hears of it"
    assert serving.post(CHAT, {**GREEDY, "messages": [{"role": "user", "content": "ho"}]})[0] == 200
    status = serving.get("/status", admin=True)[1]
    assert (status["migrated"], status["quarantined"], status["prompts_refused"]) == (1, 1, 1)


def test_the_workers_show_what_is_open_on_each(start, kinds):
    serving = start(pairs=2)
    serving.double.play(hold_at=0)
    with serving.open_stream():
        pair = groups_of(serving, kinds, 1)
        opened = {worker["name"]: worker["open"] for worker in serving.get("/workers", admin=True)[1]["workers"]}
    assert opened == {name: int(name in pair) for name in serving.double.names}


def test_an_emptied_registry_costs_nothing(start, kinds):
    serving = start()
    asked = threading.Event()
    serving.double.play(hold_at=3)
    with serving.client() as client:
        stream = client.chat.completions.create(**BODY, stream=True)
        chunks = [next(stream)]
        serving.members = emptied(asked)
        assert asked.wait(DEADLINE_S)
        serving.double.go()
        chunks += stream
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello world"
        assert serving.post(CHAT, BODY)[0] == 200, "nor is a new one refused"
    assert serving.usable() == ["d0", "p0"]


def emptied(asked: threading.Event) -> Callable[[], list]:
    """A registry that is empty; sets the event when it is looked at for the third time, so twice it was heeded."""
    looks: list[int] = []

    def members() -> list:
        looks.append(1)
        if len(looks) > 2:
            asked.set()
        return []

    return members


def test_an_order_to_a_group_that_hung_up_is_refused(start, until):
    serving = start()
    serving.double.end("d0")
    until(lambda: serving.usable() == ["p0"])
    status, answer = serving.order("d0/drain")
    assert (status, answer["error"]["code"]) == (503, "group_unreachable")


def test_a_group_that_is_being_drained_still_finishes_what_has_begun_where_nobody_else_can(start, kinds):
    serving = start(pairs=2)
    vanish(serving, "p1")
    serving.double.play(hold_at=4)
    with serving.client() as client:
        stream = client.chat.completions.create(**BODY, stream=True)
        chunks = [next(stream)]
        lost = groups_of(serving, kinds, 1)[1]
        assert serving.order("p0/drain")[0] == 202
        assert serving.post(CHAT, BODY)[0] == 503
        vanish(serving, lost)
        assert groups_of(serving, kinds, 2) == ["p0", {"d0": "d1", "d1": "d0"}[lost]]
        serving.double.go()
        chunks += stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello world"
