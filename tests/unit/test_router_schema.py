"""Bodies of the OpenAI API: what is understood, and which field is named when one is not."""

import contextlib
from typing import Any

import msgspec
import pytest
from byte_text import ByteDetokenizer
from hypothesis import given
from hypothesis import strategies as st

from router.asked import Asked, work_of
from router.chat import Chat
from router.completions import Completions
from router.document import components
from router.errors import ApiError
from router.placement import Route
from router.ports import Model
from router.schema import NEUTRAL, NEUTRAL_IN_MESSAGES, ChatBody, CompletionBody
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId, RequestId, Room
from tandem.core.members import Member
from tandem.core.requests import Sampling, Work

EOS = 256


class Bytes:
    eos_ids = (EOS,)

    def encode_text(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return list("".join(message["content"] for message in messages).encode())

    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer()


def check_grammar(text: str) -> None:
    if "impossible" in text:
        raise ValueError("it allows nothing")


MODEL = Model("tiny", 257, Bytes(), check_grammar)


def chat(**fields: Any) -> Asked:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    return Chat().read(msgspec.json.encode(body), MODEL)


def completion(**fields: Any) -> Asked:
    return Completions().read(msgspec.json.encode({"model": "tiny", "prompt": "hi", **fields}), MODEL)


def refused(ask: Any, **fields: Any) -> tuple[int, str, str | None]:
    with pytest.raises(ApiError) as raised:
        ask(**fields)
    return raised.value.status, raised.value.code, raised.value.param


PENALISED = Sampling(presence_penalty=-2.0, frequency_penalty=2.0)


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"temperature": 0}, Sampling()),
        ({"temperature": 0, "seed": 3, "top_p": 0.5}, Sampling()),
        ({"temperature": 1e-9}, Sampling()),
        ({"temperature": 2, "seed": 3}, Sampling(2.0, 1.0, 3)),
        ({"top_p": 0.1, "seed": 0}, Sampling(1.0, 0.1, 0)),
        ({"seed": -(2**63)}, Sampling(1.0, 1.0, 0)),
        ({"temperature": None, "top_p": None, "seed": 2**63 - 1}, Sampling(1.0, 1.0, 2**63 - 1)),
        ({"seed": 1, "top_k": 40, "min_p": 0.1}, Sampling(1.0, 1.0, 1, 40, 0.1)),
        ({"seed": 1, "top_k": -1}, Sampling(1.0, 1.0, 1)),
        ({"temperature": 0, "top_k": 40, "min_p": 0.1}, Sampling()),
        ({"temperature": 0, "presence_penalty": -2, "frequency_penalty": 2}, PENALISED),
        ({"temperature": 0, "repetition_penalty": 1.5}, Sampling(repetition_penalty=1.5)),
        ({"temperature": 0, "logit_bias": {"7": -100, "5": 1.5}}, Sampling(logit_bias=((5, 1.5), (7, -100.0)))),
        ({"temperature": 0, "logit_bias": {"05": 1, "5": 2}}, Sampling(logit_bias=((5, 2.0),))),
        ({"temperature": 0, "logprobs": True}, Sampling(logprobs=0)),
        ({"temperature": 0, "logprobs": True, "top_logprobs": 20}, Sampling(logprobs=20)),
        ({"temperature": 0, "logprobs": False, "top_logprobs": 0}, Sampling()),
    ],
)
def test_sampling_fields(fields, sampling):
    assert chat(**fields).sampling == sampling


def test_a_sampled_request_without_a_seed_gets_a_random_one():
    seeds = {chat().sampling.seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_limits_stops_and_flags():
    ask = chat(stop="x", stream=True, stream_options={"include_usage": True}, ignore_eos=True, user="u", unknown=[{}])
    assert (ask.stops, ask.streaming, ask.include_usage, ask.stop_ids, ask.max_tokens) == (("x",), True, True, (), None)
    ask = completion(stop=["a", "b"])
    assert (ask.stops, ask.streaming, ask.include_usage, ask.stop_ids, ask.max_tokens) == (
        ("a", "b"), False, False, (EOS,), 16,
    )  # fmt: skip
    assert chat(max_tokens=3).max_tokens == 3
    assert chat(max_tokens=3, max_completion_tokens=4).max_tokens == 4


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": value}}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": -0.1}, "invalid_value", "temperature"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"temperature": True}, "invalid_type", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"top_p": 1.01}, "invalid_value", "top_p"),
        ({"seed": 2**63}, "invalid_value", "seed"),
        ({"seed": 1.5}, "invalid_type", "seed"),
        ({"seed": True}, "invalid_type", "seed"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": "7"}, "invalid_type", "max_tokens"),
        ({"max_completion_tokens": -1}, "invalid_value", "max_completion_tokens"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"stop": ["a", ""]}, "invalid_value", "stop[1]"),
        ({"stop": ["a"] * 17}, "invalid_value", "stop"),
        ({"stop": "a" * 257}, "invalid_value", "stop"),
        ({"stop": [1]}, "invalid_type", "stop[0]"),
        ({"stream": 1}, "invalid_type", "stream"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "invalid_type", "stream_options.include_usage"),
        ({"user": 1}, "invalid_type", "user"),
        ({"priority": 101}, "invalid_value", "priority"),
        ({"priority": -101}, "invalid_value", "priority"),
        ({"priority": 1.5}, "invalid_type", "priority"),
        ({"priority": "high"}, "invalid_type", "priority"),
        ({"cache_salt": "s" * 257}, "invalid_value", "cache_salt"),
        ({"cache_salt": 5}, "invalid_type", "cache_salt"),
        ({"ignore_eos": "yes"}, "invalid_type", "ignore_eos"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 9}, "invalid_value", "n"),
        ({"n": True}, "invalid_type", "n"),
        ({"top_k": -2}, "invalid_value", "top_k"),
        ({"top_k": 2**31}, "invalid_value", "top_k"),
        ({"min_p": 1.1}, "invalid_value", "min_p"),
        ({"presence_penalty": 2.1}, "invalid_value", "presence_penalty"),
        ({"frequency_penalty": -2.1}, "invalid_value", "frequency_penalty"),
        ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
        ({"logit_bias": {"257": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"²": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"5": 101}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "invalid_type", "logit_bias"),
        ({"logit_bias": {str(at): 1 for at in range(1025)}}, "invalid_value", "logit_bias"),
        ({"logprobs": 5}, "invalid_type", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}},
            "missing_required_parameter",
            "response_format.json_schema.schema",
        ),
        ({"response_format": schema(5)}, "invalid_type", "response_format.json_schema.schema"),
        ({"response_format": schema({"title": "impossible"})}, "invalid_schema", "response_format"),
        ({"response_format": schema({"title": "x" * 65536})}, "invalid_schema", "response_format"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [[]]}, "invalid_type", "messages[0]"),
        ({"messages": [{"role": "user", "content": "x"}] * 1025}, "invalid_value", "messages"),
        ({"messages": [{"role": "god", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_type", "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "unsupported_parameter",
            "messages[1].tool_calls",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "invalid_value",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "missing_required_parameter",
            "messages[0].content[0].text",
        ),
    ],
)
def test_a_bad_chat_field_is_named(fields, code, param):
    assert refused(chat, **fields) == (400, code, param)


@pytest.mark.parametrize(
    ("asked", "grammar"),
    [
        (None, ""),
        ({"type": "text"}, ""),
        ({"type": "json_object"}, '{"type":"object"}'),
        (schema({"type": "object", "maximum": 10**400}), '{"type":"object","maximum":1' + "0" * 400 + "}"),
    ],
)
def test_a_response_format_is_a_schema_for_the_groups(asked, grammar):
    assert work_of(completion(response_format=asked), ROOM, pair(Limits(), Limits())).grammar == grammar


def test_without_a_compiler_answers_cannot_be_constrained():
    body = {"model": "tiny", "prompt": "hi", "response_format": {"type": "json_object"}}
    with pytest.raises(ApiError, match="cannot constrain"):
        Completions().read(msgspec.json.encode(body), Model("tiny", 257, Bytes()))


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ([97, 98], ["ab"]),
        (["a", "b"], ["a", "b"]),
        ([[97], [98, 99]], ["a", "bc"]),
        (["a", [98]], ["a", "b"]),
    ],
)
def test_prompts_are_texts_or_ids_alone_or_several(prompt, prompts):
    ask = completion(prompt=prompt, echo=True, n=2)
    assert (ask.prompts, ask.echoes) == (tuple(tuple(each.encode()) for each in prompts), tuple(prompts))
    assert (ask.choices, [ask.echo(index) for index in range(ask.choices)]) == (
        2 * len(prompts), [each for each in prompts for _ in range(2)],
    )  # fmt: skip


def test_each_choice_of_a_prompt_has_the_next_seed():
    ask = completion(prompt=["a", "b"], n=3, seed=2**63 - 2)
    works = [work_of(ask, ROOM, pair(Limits(), Limits()), index) for index in range(6)]
    assert [work.sampling.seed for work in works] == [2**63 - 2, 2**63 - 1, 0] * 2
    assert [bytes(work.prompt) for work in works] == [b"a"] * 3 + [b"b"] * 3
    greedy = completion(n=2, temperature=0)
    assert work_of(greedy, ROOM, pair(Limits(), Limits()), 1).sampling == Sampling()


def test_more_choices_than_one_answer_may_have_are_refused():
    assert completion(prompt=["a"] * 16, n=8).choices == 128
    assert refused(completion, prompt=["a"] * 17, n=8) == (400, "invalid_value", "n")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"logprobs": True}, "invalid_type", "logprobs"),
        ({"echo": 1}, "invalid_type", "echo"),
        ({"echo": True, "logprobs": 0}, "unsupported_parameter", "echo"),
    ],
)
def test_a_bad_completion_field_is_named(fields, code, param):
    assert refused(completion, **fields) == (400, code, param)


def test_logprobs_of_completions_are_a_number():
    assert [completion(logprobs=number).sampling.logprobs for number in (None, 0, 5, 20)] == [-1, 0, 5, 20]


def test_priority_and_cache_salt():
    assert [(ask.priority, ask.salt) for ask in (chat(), chat(priority=None, cache_salt=None))] == [(0, "")] * 2
    assert (chat(priority=-100).priority, completion(priority=100, cache_salt="a").salt) == (-100, "a")
    ask = completion(priority=3, cache_salt="tenant")
    work = work_of(ask, ROOM, pair(Limits(), Limits()))
    assert (work.priority, work.salt) == (3, "tenant")


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        ("", "invalid_value", "prompt"),
        ([], "invalid_value", "prompt"),
        ([[]], "invalid_value", "prompt"),
        ([1, "a"], "invalid_value", "prompt"),
        ([[1], 2], "invalid_value", "prompt"),
        (["a", ""], "invalid_value", "prompt"),
        ([[1], []], "invalid_value", "prompt"),
        (["a"] * 129, "invalid_value", "prompt"),
        ([257], "invalid_value", "prompt"),
        ([10**40], "invalid_value", "prompt"),
        ([-1], "invalid_value", "prompt[0]"),
        ([1.5], "invalid_type", "prompt[0]"),
        ([True], "invalid_type", "prompt[0]"),
        ([[1, "a"]], "invalid_type", "prompt[0][1]"),
        (None, "invalid_type", "prompt"),
        (5, "invalid_type", "prompt"),
    ],
)
def test_a_bad_prompt_is_named(prompt, code, param):
    assert refused(completion, prompt=prompt) == (400, code, param)


CHANGES: dict[str, list[Any]] = {
    "best_of": [2], "suffix": ["x"], "min_tokens": [1], "stop_token_ids": [[5]],
    "length_penalty": [1.5, True], "prompt_logprobs": [0], "use_beam_search": [True, 0], "bad_words": [["x"]],
    "include_stop_str_in_output": [True], "skip_special_tokens": [False, 1], "structured_outputs": [{"regex": "x"}],
    "guided_json": [{}], "guided_regex": ["x"], "guided_choice": [["x"]], "guided_grammar": ["x"],
    "reasoning_effort": ["low", "high"], "verbosity": ["low", "high"], "add_generation_prompt": [False, 1],
    "continue_final_message": [True, 1], "chat_template": ["x"], "chat_template_kwargs": [{"enable_thinking": False}],
    "documents": [[{"text": "x"}]], "truncate_prompt_tokens": [5],
    "tools": [[{"type": "function"}]], "tool_choice": ["required"],
    "functions": [[{}]], "function_call": [{"name": "x"}], "modalities": [["audio"]], "audio": [{}],
    "web_search_options": [{}],
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NEUTRAL if name not in ("echo", "logprobs", "top_logprobs")])
@pytest.mark.parametrize("ask", [chat, completion])
def test_a_field_that_would_change_the_result_is_refused_and_its_neutral_values_are_not(ask, name):
    for value in (None, *NEUTRAL[name]):
        assert ask(**{name: value}).prompt
    for value in CHANGES[name]:
        assert refused(ask, **{name: value}) == (400, "unsupported_parameter", name)


@pytest.mark.parametrize("name", NEUTRAL_IN_MESSAGES)
def test_a_field_of_a_message_is_refused_in_the_same_way(name):
    def ask(value: Any) -> Asked:
        return chat(messages=[{"role": "user", "content": "hi", "unknown": 1, name: value}])

    for value in (None, *NEUTRAL_IN_MESSAGES[name]):
        assert ask(value).prompt
    for value in ("x", 0, [{}], {"name": "f"}):
        assert refused(ask, value=value) == (400, "unsupported_parameter", f"messages[0].{name}")


@pytest.mark.parametrize(("ask", "name", "value"), [(chat, "echo", True), (completion, "top_logprobs", 3)])
def test_a_field_of_the_other_endpoint_is_refused_if_it_would_change_the_result(ask, name, value):
    assert ask(**{name: type(value)()})
    assert refused(ask, **{name: value}) == (400, "unsupported_parameter", name)


def test_the_first_unsupported_field_of_the_body_is_named():
    assert refused(chat, min_tokens=5, best_of=2) == (400, "unsupported_parameter", "min_tokens")


def test_what_stands_in_strings_does_not_nest():
    assert chat(messages=[{"role": "user", "content": "[{" * 500 + '\\"['}]).prompt
    assert chat(messages=[{"role": "user", "content": "x"}] * 500).prompt
    deep: list[Any] = []
    for _ in range(62):
        deep = [deep]
    assert chat(x=deep).prompt
    assert refused(chat, x=[[deep]]) == (400, "invalid_json", None)


def test_a_string_that_never_ends_costs_no_more_than_its_length():
    with pytest.raises(ApiError) as raised:
        Chat().read(b'{"x": ' + b"[" * 65 + b'"' + b'\\"' * 1_000_000, MODEL)
    assert raised.value.code == "invalid_json"


def test_the_model_is_looked_at_before_the_prompt():
    assert refused(completion, model="other", prompt="") == (404, "model_not_found", "model")


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_do_more_than_a_refusal(payload: bytes):
    for dialect in (Chat(), Completions()):
        with pytest.raises(ApiError):
            dialect.read(payload, MODEL)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, *NEUTRAL]), JSON)
def test_no_value_does_more_than_a_refusal(name: str, value: Any):
    with contextlib.suppress(ApiError):
        assert isinstance(chat(**{name: value}), Asked)
    with contextlib.suppress(ApiError):
        assert isinstance(completion(**{name: value}), Asked)


def test_what_is_ignored_is_told_to_the_log_and_cut(caplog):
    caplog.set_level("DEBUG", "tandem.router")
    chat(unheard_of=1, **{"x" * 1000: "secret"})
    told = [record.getMessage() for record in caplog.records]
    assert [("unheard_of" in line, "x" * 65 in line) for line in told] == [(True, False), (False, False)]
    assert "secret" not in caplog.text


def test_bodies_are_described():
    described = components(ChatBody, CompletionBody)
    assert described["ChatBody"]["required"] == ["model", "messages"]
    assert described["CompletionBody"]["required"] == ["model", "prompt"]


ROOM = Room(RequestId(1), 1)


def head(role: RoleName, limits: Limits) -> Member:
    return Member(Group(role, role.value, (1,)), RankId(0), 1, 1, "h", "f", "m", "", "", "", limits)


def pair(prefill: Limits, decode: Limits) -> Route:
    return Route((head(RoleName.PREFILL, prefill), head(RoleName.DECODE, decode)))


def alone(limits: Limits) -> Route:
    return Route((head(RoleName.COLOCATED, limits),))


@pytest.mark.parametrize("route", [lambda limits: pair(limits, limits), alone], ids=["pair", "alone"])
@pytest.mark.parametrize(
    ("max_tokens", "prompt", "context", "pages", "expected"),
    [
        (None, 10, 64, 99, 54),
        (None, 63, 64, 99, 1),
        (None, 10, 64, 2, 23),  # 32 tokens of KV: the last token's is never kept
        (54, 10, 64, 99, 54),
        (55, 10, 64, 99, "max_tokens"),
        (None, 64, 64, 99, "prompt"),
        (5, 70, 64, 99, "prompt"),
        (23, 10, 64, 2, 23),
        (24, 10, 64, 2, "max_tokens"),
        (1, 33, 64, 2, "max_tokens"),
        (None, 33, 64, 2, "prompt"),
    ],
)
def test_what_fits_and_what_does_not(route, max_tokens, prompt, context, pages, expected):
    ask = completion(prompt=[1] * prompt, max_tokens=max_tokens)
    if max_tokens is None:
        ask = msgspec.structs.replace(ask, max_tokens=None)
    limits = Limits(context=context, num_pages=pages, page_size=16)
    if isinstance(expected, int):
        work = work_of(ask, ROOM, route(limits))
        assert (work.max_tokens, len(work.prompt), work.room) == (expected, prompt, ROOM)
    else:
        assert refused(lambda: work_of(ask, ROOM, route(limits))) == (400, "context_length_exceeded", expected)


@pytest.mark.parametrize(
    "name", ["max_tokens", "max_completion_tokens", "seed", "priority", "n", "best_of", "top_k", "min_p"]
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_a_number_of_any_size_reaches_a_group_or_is_refused_by_its_name(ask, name):
    named: set[str | None] = set()
    for number in (2**31, 2**63, 2**64, 10**400, -(2**31), -(2**63) - 1, -(10**400)):
        try:
            work = work_of(ask(**{name: number}), ROOM, alone(Limits()))
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(work), type=Work) == work
        except ApiError as error:
            named.add(error.param)
    assert named <= {name}


def test_one_token_needs_nothing_of_the_decode_group():
    ask = completion(prompt=[1] * 40, max_tokens=1)
    assert work_of(ask, ROOM, pair(Limits(num_pages=3), Limits(num_pages=1))).max_tokens == 1


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"messages": [{"role": "tool", "content": "x"}]}, "give one of system, developer, user, assistant"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "text": ""}]}]}, "give one of text"),
        ({"response_format": {"type": "xml"}}, "give one of text, json_object, json_schema"),
    ],
)
def test_a_word_that_is_none_of_those_allowed_is_answered_with_them(fields: dict[str, Any], told: str):
    with pytest.raises(ApiError) as error:
        chat(**fields)
    assert (error.value.status, error.value.message.endswith(told)) == (400, True)
