"""What one request asks for, after its body was read and its prompt tokenised."""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence

import msgspec

from router.errors import ApiError
from router.grammars import grammar_of
from router.placement import Route
from router.ports import Model
from router.schema import Body
from tandem.core.config import MAX_CHOICES, Limits
from tandem.core.ids import Room
from tandem.core.requests import Sampling, Work, pages_for

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing logits by them overflows."""

TOKENS_MAX = 10**100
"""Nobody means more; numbers of thousands of digits are refused by Python when they are to be written."""

SEED_MASK = 2**63 - 1

CHOICES_MAX = MAX_CHOICES
"""Prompts of a request times `n`."""

_TOKEN_ID = re.compile(r"[0-9]{1,9}")


class Asked(msgspec.Struct, frozen=True):
    """A request in tokens. `max_tokens` None: as many as fit."""

    prompts: tuple[tuple[int, ...], ...]
    prompt_param: str  # the field an over-long prompt came in
    n: int  # choices for each prompt
    max_tokens: int | None
    max_tokens_param: str
    sampling: Sampling
    stop_ids: tuple[int, ...]
    stops: tuple[str, ...]
    streaming: bool
    include_usage: bool
    priority: int
    salt: str
    grammar: str = ""
    echoes: tuple[str, ...] = ()  # the text of each prompt, to be told before its answers

    @property
    def prompt(self) -> tuple[int, ...]:
        """The first one."""
        return self.prompts[0]

    @property
    def choices(self) -> int:
        """Answers in all."""
        return len(self.prompts) * self.n

    def echo(self, index: int) -> str:
        """What is told before the answer of this choice."""
        return self.echoes[index // self.n] if self.echoes else ""


class Particulars(msgspec.Struct, frozen=True):
    """What the two endpoints say in different words."""

    prompts: Sequence[Sequence[int]]
    prompt_param: str
    max_tokens: int | None
    max_tokens_param: str
    logprobs: int  # as in Sampling
    echoes: tuple[str, ...] = ()


def asked(body: Body, its: Particulars, model: Model) -> Asked:
    """Fill in OpenAI's defaults. Raises ApiError 400."""
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    n = body.n or 1
    if len(its.prompts) * n > CHOICES_MAX:
        text = f"{len(its.prompts)} prompts with n = {n} are more than {CHOICES_MAX} choices"
        raise ApiError(400, "invalid_value", text, "n")
    return Asked(
        prompts=tuple(map(tuple, its.prompts)),
        prompt_param=its.prompt_param,
        n=n,
        max_tokens=None if its.max_tokens is None else min(its.max_tokens, TOKENS_MAX),
        max_tokens_param=its.max_tokens_param,
        sampling=sampling_of(body, its.logprobs, model.vocab, secrets.randbits),
        stop_ids=() if body.ignore_eos else model.tokenizer.eos_ids,
        stops=stops,
        streaming=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        priority=body.priority or 0,
        salt=body.cache_salt or "",
        grammar=grammar_of(body.response_format, model),
        echoes=its.echoes,
    )


def sampling_of(body: Body, logprobs: int, vocab: int, draw: Callable[[int], int]) -> Sampling:
    """A greedy request needs no seed, and nothing that leaves tokens out; a sampled one without a seed draws one.

    Raises ApiError 400.
    """
    greedy = Sampling(
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=_biases(body.logit_bias, vocab) if body.logit_bias else (),
        logprobs=logprobs,
    )
    temperature = 1.0 if body.temperature is None else body.temperature
    if temperature < GREEDY_BELOW:
        return greedy
    return msgspec.structs.replace(
        greedy,
        temperature=temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=draw(63) if body.seed is None else body.seed & SEED_MASK,
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
    )


def _biases(biases: Mapping[str, float], vocab: int) -> tuple[tuple[int, float], ...]:
    """Two spellings of one token are its one bias: the last counts, as with equal keys in JSON."""
    by_token: dict[int, float] = {}
    for key, bias in biases.items():
        if not _TOKEN_ID.fullmatch(key) or int(key) >= vocab:
            text = f"logit_bias: its keys are token ids below {vocab}, not {key[:64]!r}"
            raise ApiError(400, "invalid_value", text, "logit_bias")
        by_token[int(key)] = bias
    return tuple(sorted(by_token.items()))


def check_model(name: str, served: str) -> None:
    """Raises ApiError 404 for every other model."""
    if name != served:
        raise model_not_found(name, served)


def model_not_found(name: str, served: str) -> ApiError:
    """No such model here."""
    return ApiError(
        404, "model_not_found", f"the model {name[:64]!r} does not exist; this server has {served!r}", "model"
    )


def work_of(ask: Asked, room: Room, route: Route, index: int = 0) -> Work:
    """One choice's work for this route. Raises ApiError 400 `context_length_exceeded` by the groups' own rule.

    A prompt's choices have seeds that follow each other, whatever other prompts stand beside it.
    """
    prompt, number = ask.prompts[index // ask.n], index % ask.n
    room_left = min(route.context, route.kept_tokens_max + 1) - len(prompt)
    max_tokens = max(1, room_left) if ask.max_tokens is None else ask.max_tokens
    sampling = ask.sampling
    if number and sampling.temperature:
        sampling = msgspec.structs.replace(sampling, seed=(sampling.seed + number) & SEED_MASK)
    work = Work(room, prompt, max_tokens, ask.stop_ids, sampling, None, ask.priority, ask.salt, grammar=ask.grammar)
    obstacle = route.obstacle(work)
    if obstacle is not None:
        raise _too_large(ask, work, route.context, *obstacle)
    return work


def _too_large(ask: Asked, work: Work, context: int, limits: Limits, tokens: int) -> ApiError:
    """The numbers a client needs to make it fit."""
    prompt, total = len(work.prompt), len(work.prompt) + work.max_tokens
    param = ask.prompt_param if prompt >= context or ask.max_tokens is None else ask.max_tokens_param
    if pages_for(tokens, limits.page_size) > limits.num_pages and total <= context:
        text = f"a group here holds at most {limits.num_pages * limits.page_size} tokens. However, this request needs"
        return ApiError(400, "context_length_exceeded", f"{text} {tokens}. Please reduce its length.", param)
    text = f"This model's maximum context length is {context} tokens. However, you requested {total} tokens"
    parts = f"({prompt} in the {ask.prompt_param}, {work.max_tokens} in the completion)"
    return ApiError(400, "context_length_exceeded", f"{text} {parts}. Please reduce the length of either.", param)
