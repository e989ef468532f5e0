"""Real processes over real Mooncake with the fake engine: its tokens are right only if every KV byte it read was."""

import contextlib
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster import Cluster
from fake_model import FAKE, all_answered_right, answers_right, complete, expected, text_of
from streams import events, model_of, stream
from waiting import DEADLINE_S, eventually

SHAPES = [(2, 2), (1, 3), (3, 2), (4, 1)]


def start(cluster_of: Callable[..., Cluster], prefill: int = 2, decode: int = 2, *more: str) -> Cluster:
    return cluster_of(*FAKE, "--prefill-pp", str(prefill), "--decode-pp", str(decode), *more)


@pytest.mark.parametrize(("prefill", "decode"), SHAPES)
def test_any_prefill_shape_hands_over_to_any_decode_shape(
    cluster_of: Callable[..., Cluster], prefill: int, decode: int
) -> None:
    cluster = start(cluster_of, prefill, decode)
    rng = random.Random(7)
    for length in (1, 15, 16, 17, 300, 1500):
        prompt = [rng.randrange(32, 127) for _ in range(length)]
        answer = complete(cluster, prompt=prompt, max_tokens=20, ignore_eos=True)
        assert answer["choices"][0]["text"] == expected(prompt, 20)
        assert answer["choices"][0]["finish_reason"] == "length"
        usage = answer["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (length, 20, length + 20)


def test_uneven_layers_go_to_whoever_owns_them(cluster_of: Callable[..., Cluster]) -> None:
    cut = ("--prefill-pp-partition", "1,5,2", "--decode-pp-partition", "6,2", "--pp-async-batch-depth", "2")
    cluster = start(cluster_of, 3, 2, *cut)
    prompt = list(b"layers 1,5,2 on prefill and 6,2 on decode")
    assert complete(cluster, prompt=prompt, max_tokens=30, ignore_eos=True)["choices"][0]["text"] == expected(
        prompt, 30
    )


def test_two_streams_at_once_do_not_touch_each_other(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of)
    prompts = [list(b"the first of two streams"), list(b"the second, a little longer one")]
    with contextlib.ExitStack() as stack:
        responses = [
            stack.enter_context(stream(cluster, {"prompt": prompt, "max_tokens": 200, "ignore_eos": True}))
            for prompt in prompts
        ]
        with ThreadPoolExecutor(2) as pool:
            texts = list(pool.map(text_of, responses))
    assert texts == [expected(prompt, 200) for prompt in prompts]


def test_thirty_two_mixed_requests_at_once_all_end_right(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of)

    def one(number: int) -> None:
        rng = random.Random(number)  # of its own: what is drawn must not depend on which thread comes first
        prompt = [rng.randrange(32, 127) for _ in range(rng.choice([1, 3, 40, 700]))]
        answers_right(cluster, prompt, rng, number)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(one, range(32)))


def test_a_tiny_page_pool_only_makes_requests_wait(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of, 2, 3, "--num-pages", "12")
    prompts = [[32 + number] * 60 for number in range(8)]

    all_answered_right(cluster, prompts, max_tokens=90)


@contextlib.contextmanager
def slow_write(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    """Every prefill rank's first write waits: a transfer that can be looked at."""
    plan = {"at": {"1": "delay"}, "seconds": seconds}
    with monkeypatch.context() as patch:
        patch.setenv("TANDEM_TEST_FAULTS", "1")
        patch.setenv("TANDEM_TEST_FAULT_PLAN", json.dumps(plan))
        yield


def test_a_client_that_leaves_during_the_transfer_gives_all_pages_back(
    no_other_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_write(monkeypatch, 5.0), Cluster(*FAKE) as cluster:
        prompt = list(b"its first token comes long before its KV has moved")
        with stream(cluster, {"prompt": prompt, "max_tokens": 50, "ignore_eos": True}) as response:
            first = next(events(response))
            assert first["choices"][0]["text"] == expected(prompt, 50)[0]
            states = cluster.states()
            assert states["d0.0"]["rooms"] == 1
            assert states["d0.0"]["running"] == 0, "decode must not have begun: the transfer is held up"
        eventually(lambda: cluster.state("d0.0")["rooms"] == 0, "decode lets go after prefill is quiet")
        cluster.at_rest()
        assert "fault acted: delay" in cluster.stderr()
        assert complete(cluster, prompt=prompt, max_tokens=50, ignore_eos=True)["choices"][0]["text"] == expected(
            prompt, 50
        )


def test_a_client_that_leaves_during_decode_gives_all_pages_back(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of)
    with stream(cluster, {"prompt": "a long answer", "max_tokens": 8000, "ignore_eos": True}) as response:
        for _, _event in zip(range(20), events(response), strict=False):
            pass
        assert cluster.state("d0.0")["running"] == 1
    eventually(lambda: cluster.state("d0.0")["rooms"] == 0, "decode hears that the client left")
    cluster.at_rest()


def test_a_storm_of_leaving_clients_leaves_nothing_behind(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of)

    def one(number: int) -> None:
        rng = random.Random(number)
        prompt = [rng.randrange(32, 127) for _ in range(rng.choice([5, 200, 2000]))]
        with stream(cluster, {"prompt": prompt, "max_tokens": 500, "ignore_eos": True}) as response:
            for _, _event in zip(range(number % 5), events(response), strict=False):
                pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(100)))
    cluster.at_rest()


def test_a_prompt_longer_than_the_context_is_refused_by_name(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of)
    with pytest.raises(urllib.error.HTTPError) as refused:
        complete(cluster, prompt=[65] * 9000, max_tokens=1)
    body = json.load(refused.value)
    assert (refused.value.code, body["error"]["code"]) == (400, "context_length_exceeded")


BAD: list[tuple[bytes, int]] = [
    (b"{", 400),
    (b"\xff\xfe", 400),
    (b"[]", 400),
    (b'{"model": "M", "messages": []}', 400),
    (b'{"model": "M", "messages": [{"role": "robot", "content": "x"}]}', 400),
    (b'{"model": "M", "messages": [{"role": "user", "content": 5}]}', 400),
    (b'{"model": "M", "messages": [{"role": "user", "content": "x"}], "temperature": 9}', 400),
    (b'{"model": "M", "messages": [{"role": "user", "content": "x"}], "max_tokens": -1}', 400),
    (b'{"model": "M", "messages": [{"role": "user", "content": "x"}], "n": 9}', 400),
    (b'{"model": "another", "messages": [{"role": "user", "content": "x"}]}', 404),
    (b'{"model": "M", "messages": "x"}', 400),
]


def test_bad_requests_get_openai_errors_and_the_cluster_still_answers(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of)
    for content, status in BAD:
        body = content.replace(b'"M"', json.dumps(model_of(cluster)).encode())
        request = urllib.request.Request(
            f"{cluster.url}/v1/chat/completions", body, {"content-type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=DEADLINE_S)
        error = json.load(refused.value)["error"]
        assert refused.value.code == status, (content, error)
        assert set(error) == {"message", "type", "code", "param"}, content
    prompt = list(b"still here")
    assert complete(cluster, prompt=prompt, max_tokens=5, ignore_eos=True)["choices"][0]["text"] == expected(prompt, 5)


def test_a_fake_cluster_never_loads_torch(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of)
    for name, pid in cluster.pids.items():
        with open(f"/proc/{pid}/maps") as maps:
            assert "libtorch" not in maps.read(), name
