"""Requests that do not get to their end: the client, a group, the clock, or the router itself goes first."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import openai
import pytest
from waiting import DEADLINE_S

from tandem.core.requests import Reason

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def cancelled_on_both(serving, kinds, reason: Reason) -> None:
    """Each group gets its Cancel, for the room that it has."""
    room = serving.double.wait_for(kinds.submit)[0].work.room
    for group in (kinds.prefill, kinds.decode):
        assert [(c.room, c.reason) for c in serving.double.wait_for(kinds.cancel, group)] == [(room, reason)]


@pytest.mark.parametrize("hold_at", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_noticed(serving, kinds, hold_at, stream):
    serving.double.play(hold_at=hold_at)
    with serving.open_stream(stream=stream) as line:
        serving.double.wait_for(kinds.submit, count=2)
        if stream and hold_at:
            assert b" 200 " in kinds.read_head(line)
    cancelled_on_both(serving, kinds, Reason.CLIENT_GONE)


def test_a_client_that_resets_its_connection_is_noticed(serving, kinds):
    serving.double.play(hold_at=3)
    with serving.open_stream() as line:
        kinds.read_head(line)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    cancelled_on_both(serving, kinds, Reason.CLIENT_GONE)


def test_the_official_client_cancels_by_closing(serving, kinds):
    serving.double.play(hold_at=4)
    with serving.client() as client:
        stream = client.chat.completions.create(**BODY, stream=True)
        next(iter(stream))
        stream.close()
    cancelled_on_both(serving, kinds, Reason.CLIENT_GONE)


def test_a_client_that_leaves_within_its_body_leaves_nothing(serving, kinds):
    with socket.create_connection(serving.address) as line:
        line.sendall(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{")
    serving.wait_at_rest()
    assert not [m for _, m in serving.double.seen if isinstance(m, kinds.submit)]


@pytest.mark.parametrize("stream", [False, True])
def test_the_deadline_holds_although_both_groups_are_silent(start, kinds, stream):
    serving = start(request_timeout_s=1.5)
    serving.double.play(hold_at=0)
    status, _, payload = serving.post(CHAT, {**BODY, "stream": stream})
    assert (status, json.loads(payload)["error"]["code"]) == (504, "deadline_exceeded")
    cancelled_on_both(serving, kinds, Reason.DEADLINE)


@pytest.mark.parametrize("group", ["p0", "d0"])
def test_a_lost_group_is_named_before_the_first_byte(start, kinds, group):
    serving = start()
    serving.double.play(hold_at=0)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(serving.post(CHAT, BODY)))
    asking.start()
    serving.double.wait_for(kinds.submit, count=2)
    serving.router.group_lost(group, "rank 1 exited with -9")
    asking.join()
    status, _, payload = answers[0]
    error = json.loads(payload)["error"]
    assert (status, error["code"]) == (502, "group_lost")
    assert group in error["message"]
    assert "rank 1 exited with -9" in error["message"]
    assert serving.get("/readyz")[0] == 503


def test_a_lost_group_ends_a_stream_with_an_error_event(start, kinds, until):
    serving = start()
    serving.double.play(hold_at=4)
    with serving.open_stream() as line:
        data = kinds.read_until(line, lambda data: data.count(b'"content"') >= 5)
        serving.router.group_lost(kinds.decode, "killed")
        data = kinds.read_until(line, lambda data: b"[DONE]" in data, data)
    events = [part for part in data.split(b"\r\n") if part.startswith(b"data: ")]
    assert b'"group_lost"' in events[-1]
    assert b'"finish_reason":"length"' not in data
    status, answer = serving.get("/readyz")
    assert (status, answer["error"]["code"]) == (503, "no_decode")
    serving.double.epoch = 2
    until(lambda: serving.get("/readyz")[0] == 200)


def test_a_silent_group_is_lost_and_may_come_back(start, kinds, until):
    serving = start(ping_s=60)
    serving.double.play(hold_at=0)
    with serving.open_stream() as line:
        serving.double.wait_for(kinds.submit, count=2)
        serving.double.silent.add(kinds.prefill)
        data = kinds.read_until(line, lambda data: b"no sign of life" in data)
        assert b" 502 " in data.split(b"\r\n")[0]
    cancelled_on_both(serving, kinds, Reason.PEER_ENDED)
    assert serving.get("/readyz")[1]["error"]["code"] == "no_prefill"
    serving.double.silent.clear()
    until(lambda: serving.get("/readyz")[0] == 200)


def test_a_router_that_was_stopped_for_too_long_says_so(start, kinds, monkeypatch):
    """The groups have given its requests up by then, and had nobody to tell."""
    serving = start()
    serving.double.play(hold_at=3)
    with serving.open_stream() as line:
        serving.double.wait_for(kinds.submit, count=2)
        monkeypatch.setattr("router.service.STALL_S", 0.0)
        data = kinds.read_until(line, lambda data: b"[DONE]" in data)
    assert b'"router_stalled"' in data


def test_a_prefill_group_lost_after_the_handover_costs_nothing(start, kinds, until):
    serving = start()
    serving.double.play(hold_at=4)
    with serving.client() as client:
        stream = client.chat.completions.create(**BODY, stream=True)
        chunks = []
        while len(chunks) < 4:
            chunks.append(next(stream))
        serving.router.group_lost(kinds.prefill, "killed")
        until(lambda: serving.get("/readyz")[0] == 503)
        serving.double.go()
        chunks += stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello world"


def test_the_supervisors_pipe_names_a_lost_group(start, until):
    serving = start()
    serving.router.hear("something else")
    serving.router.hear("lost p0 rank 1 exited with -9")
    until(lambda: serving.get("/readyz")[0] == 503)
    causes = [worker["cause"] for worker in serving.get("/workers", admin=True)[1]["workers"]]
    assert causes == [None, "rank 1 exited with -9"]


def test_a_registry_that_fails_leaves_the_last_known_members(start, kinds, until):
    serving = start()
    asked = threading.Event()

    def down() -> list:
        asked.set()
        raise ConnectionError("redis is down")

    serving.members = down
    assert asked.wait(DEADLINE_S)
    assert serving.post(CHAT, BODY)[0] == 200


def test_no_group_is_a_503_with_the_reason(start):
    serving = start(registered=False)
    assert "none is registered" in serving.get("/readyz")[1]["error"]["message"]
    status, headers, payload = serving.post(CHAT, BODY)
    assert (status, json.loads(payload)["error"]["code"]) == (503, "no_prefill")
    assert headers["retry-after"] == "1"
    serving.members = serving.double.members
    serving.wait_ready()


def test_a_reader_that_stops_reading_is_cut_off(start, kinds):
    serving = start(stalled_write_s=0.3)
    serving.double.play(ids=[65] * 7000, hold_at=1)
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(serving.address)
        payload = json.dumps({**BODY, "user": "x", "stream": True}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n"
        line.sendall(head.encode() + payload)
        serving.double.wait_for(kinds.submit, count=2)
        serving.double.script.ids = [65] * 8000
        serving.double.go()
        serving.wait_at_rest()
        assert b"[DONE]" not in kinds.read_all(line)


def test_stopping_ends_open_streams_with_an_error(start, kinds):
    serving = start()
    serving.double.play(hold_at=3)
    with serving.client() as client:
        stream = client.chat.completions.create(**BODY, stream=True)
        next(stream)
        serving.router.end()
        with pytest.raises(openai.APIError) as raised:
            list(stream)
    assert raised.value.code == "shutting_down"
    cancelled_on_both(serving, kinds, Reason.CLIENT_GONE)


PROGRAM = """
import sys
from router.app import Parts, Router
from router.ports import Model
from tandem.core.config import RouterOptions
options = RouterOptions(cluster="", model="m", served_model_name="", registry_url="", port=0)
router = Router(options, Parts(Model("m", 1, None), list, lambda context: None))
code = router.serve(lambda url, admin: print("READY", url, flush=True))
assert "torch" not in sys.modules
sys.exit(code)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_and_torch_was_never_loaded(number):
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("READY http://127.0.0.1:")
        os.kill(process.pid, number)
        assert process.wait(DEADLINE_S) == 0
