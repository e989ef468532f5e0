"""What one request asks for, after its body was read and its prompt tokenised."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.errors import ApiError
from router.placement import Route
from router.ports import Model
from router.schema import Body
from tandem.core.config import Limits
from tandem.core.ids import Room
from tandem.core.requests import Sampling, Work, pages_for

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing logits by them overflows."""

TOKENS_MAX = 10**100
"""Nobody means more; numbers of thousands of digits are refused by Python when they are to be written."""

SEED_MASK = 2**63 - 1


@dataclass(frozen=True)
class Asked:
    """A request in tokens. `max_tokens` None: as many as fit."""

    prompt: tuple[int, ...]
    prompt_param: str  # the field an over-long prompt came in
    max_tokens: int | None
    max_tokens_param: str
    sampling: Sampling
    stop_ids: tuple[int, ...]
    stops: tuple[str, ...]
    streaming: bool
    include_usage: bool
    priority: int
    salt: str


def asked(body: Body, prompt: Sequence[int], prompt_param: str, limit: tuple[int | None, str], model: Model) -> Asked:
    """Fill in OpenAI's defaults. `limit` is (max_tokens, the field it came in)."""
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Asked(
        prompt=tuple(prompt),
        prompt_param=prompt_param,
        max_tokens=None if limit[0] is None else min(limit[0], TOKENS_MAX),
        max_tokens_param=limit[1],
        sampling=sampling_of(body, secrets.randbits),
        stop_ids=() if body.ignore_eos else model.tokenizer.eos_ids,
        stops=stops,
        streaming=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        priority=body.priority or 0,
        salt=body.cache_salt or "",
    )


def sampling_of(body: Body, draw: Callable[[int], int]) -> Sampling:
    """A greedy request needs no seed; a sampled one without a seed gets a random one."""
    temperature = 1.0 if body.temperature is None else body.temperature
    if temperature < GREEDY_BELOW:
        return Sampling()
    seed = draw(63) if body.seed is None else body.seed & SEED_MASK
    return Sampling(temperature=temperature, top_p=1.0 if body.top_p is None else body.top_p, seed=seed)


def check_model(body: Body, served: str) -> None:
    """Raises ApiError 404 for every other model."""
    if body.model != served:
        raise model_not_found(body.model, served)


def model_not_found(name: str, served: str) -> ApiError:
    """No such model here."""
    return ApiError(
        404, "model_not_found", f"the model {name[:64]!r} does not exist; this server has {served!r}", "model"
    )


def work_of(ask: Asked, room: Room, route: Route) -> Work:
    """The work for this route. Raises ApiError 400 `context_length_exceeded` by the groups' own rule."""
    room_left = min(route.context, route.kept_tokens_max + 1) - len(ask.prompt)
    max_tokens = max(1, room_left) if ask.max_tokens is None else ask.max_tokens
    work = Work(room, ask.prompt, max_tokens, ask.stop_ids, ask.sampling, None, ask.priority, ask.salt)
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
