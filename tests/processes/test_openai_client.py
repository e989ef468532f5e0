"""OpenAI's own client, sync and async, against a real cluster with the fake engine: it must work unchanged."""

import asyncio
from collections.abc import Callable, Iterator

import openai
import pytest
from cluster import Cluster
from fake_model import FAKE, expected
from waiting import DEADLINE_S, eventually

HI = [{"role": "user", "content": "hi"}]
PROMPT = list(b"a prompt that is longer than two pages of the cache")
LONG = {"max_tokens": 8000, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def cluster(cluster_of: Callable[..., Cluster]) -> Cluster:
    return cluster_of(*FAKE, "--prefill-pp", "2", "--decode-pp", "2")


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="any", max_retries=0, timeout=DEADLINE_S) as made:
        yield made


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    (only,) = client.models.list().data
    assert client.models.retrieve(only.id).owned_by == "tandem"
    return only.id


def all_over(cluster: Cluster) -> bool:
    """No rank has a request, none waits, and the router answers none."""
    return all(state["rooms"] == 0 and state["waiting"] == 0 for state in cluster.states().values())


def test_a_model_that_does_not_exist(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("org/huge")
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


def test_a_completion_is_what_the_model_says(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=20, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].text == expected(PROMPT, 20)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), 20)


def test_what_is_cached_is_told(client: openai.OpenAI, model: str) -> None:
    prompt = "a prompt of this test alone, which is to be found again " * 3
    cached = [
        client.completions.create(model=model, prompt=prompt, max_tokens=1).usage.prompt_tokens_details.cached_tokens
        for _ in range(2)
    ]
    assert cached[0] == 0
    assert 0 < cached[1] < len(prompt)
    assert cached[1] % 16 == 0, "whole pages"


def test_prompts_in_one_request_are_answered_as_alone(client: openai.OpenAI, model: str) -> None:
    prompts = [PROMPT, list(b"another one")]
    answer = client.completions.create(
        model=model, prompt=prompts, max_tokens=10, temperature=0, echo=True, extra_body={"ignore_eos": True}
    )
    assert [choice.text for choice in answer.choices] == [
        bytes(prompt).decode() + expected(prompt, 10) for prompt in prompts
    ]
    assert answer.usage.total_tokens == sum(map(len, prompts)) + 20


def test_choices_differ_and_their_stream_is_the_same(client: openai.OpenAI, model: str) -> None:
    asked = {"model": model, "messages": HI, "n": 3, "seed": 7, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    answer = client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) == 3
    assert answer.usage.completion_tokens == 36
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    for index, text in enumerate(texts):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in own) == text
        assert own[-1].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 36


@pytest.mark.parametrize("top", [0, 20])
def test_logprobs_of_a_chat_are_those_of_its_tokens(client: openai.OpenAI, model: str, top: int) -> None:
    asked = {"model": model, "messages": HI, "seed": 3, "max_tokens": 12, "logprobs": True, "top_logprobs": top}
    answer = client.chat.completions.create(**asked)
    content = answer.choices[0].logprobs.content
    assert "".join(each.token for each in content) == answer.choices[0].message.content
    assert {len(each.top_logprobs) for each in content} == {top}
    assert all(each.logprob < 0 for each in content)
    chunks = client.chat.completions.create(**asked, stream=True)
    choices = [chunk.choices[0] for chunk in chunks]
    assert [each for choice in choices if choice.logprobs for each in choice.logprobs.content] == content


def test_logprobs_of_a_completion(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0, logprobs=2)
    told, text = answer.choices[0].logprobs, answer.choices[0].text
    assert "".join(told.tokens) == text
    assert [text[at] for at in told.text_offset] == told.tokens
    assert all(token in top and len(top) == 2 for token, top in zip(told.tokens, told.top_logprobs, strict=True))


def test_every_sampling_field_is_taken(client: openai.OpenAI, model: str) -> None:
    fields = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"65": -100}, "top_p": 0.9, "seed": 1}
    more = {"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True, "priority": 1}
    answers = [
        client.chat.completions.create(model=model, messages=HI, max_tokens=20, user="u", extra_body=more, **fields)
        for _ in range(2)
    ]
    assert [answer.usage.completion_tokens for answer in answers] == [20, 20]
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0] == texts[1], "a seed makes it repeatable"


def test_a_schema_that_cannot_be_compiled_is_refused_and_another_is_not(client: openai.OpenAI, model: str) -> None:
    def asked(schema: dict) -> dict:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}

    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=model, messages=HI, response_format=asked({"type": "nonsense"}))
    assert (raised.value.code, raised.value.param) == ("invalid_schema", "response_format")
    good = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    for wanted in (asked(good), {"type": "json_object"}, {"type": "text"}):
        answer = client.chat.completions.create(model=model, messages=HI, max_tokens=5, response_format=wanted)
        assert answer.usage.completion_tokens <= 5


def test_a_stream_that_is_closed_leaves_nothing(client: openai.OpenAI, cluster: Cluster, model: str) -> None:
    stream = client.chat.completions.create(model=model, messages=HI, n=2, stream=True, **LONG)
    next(iter(stream))
    stream.close()
    eventually(lambda: all_over(cluster), "all rooms are gone")


def test_a_client_whose_time_is_over_leaves_nothing(client: openai.OpenAI, cluster: Cluster, model: str) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).chat.completions.create(model=model, messages=HI, n=8, **LONG)
    eventually(lambda: all_over(cluster), "all rooms are gone")


def test_the_async_client_does_many_things_at_once(cluster: Cluster, model: str) -> None:
    async def story() -> None:
        async with openai.AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="any", max_retries=0) as client:

            async def whole(prompt: list[int]) -> str:
                answer = await client.completions.create(
                    model=model, prompt=prompt, max_tokens=10, temperature=0, extra_body={"ignore_eos": True}
                )
                return answer.choices[0].text

            async def streamed(prompt: list[int]) -> str:
                stream = await client.completions.create(
                    model=model, prompt=prompt, max_tokens=10, temperature=0, stream=True,
                    extra_body={"ignore_eos": True},
                )  # fmt: skip
                return "".join([chunk.choices[0].text async for chunk in stream])

            prompts = [list(f"prompt number {number}".encode()) for number in range(16)]
            told = await asyncio.gather(*map(whole, prompts), *map(streamed, prompts))
            assert told == [expected(prompt, 10) for prompt in prompts] * 2

    asyncio.run(story())


def test_a_cancelled_task_leaves_nothing(cluster: Cluster, model: str) -> None:
    async def story() -> None:
        async with openai.AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="any", max_retries=0) as client:
            stream = await client.chat.completions.create(model=model, messages=HI, stream=True, n=2, **LONG)
            begun = asyncio.Event()

            async def read() -> None:
                async for _ in stream:
                    begun.set()

            reading = asyncio.create_task(read())
            await begun.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

    asyncio.run(story())
    eventually(lambda: all_over(cluster), "all rooms are gone")
