"""What a client asked for, in the form the groups see it: token ids only, no text."""

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from tandem.core.config import Limits
from tandem.core.ids import Room

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Priority = Annotated[int, Meta(ge=-100, le=100)]
Salt = Annotated[str, Meta(max_length=256)]
PRIORITY_MS = 10_000
"""What one step of priority is worth in waiting time, so that nobody starves behind a more important crowd."""


NO_LOGPROBS = -1


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How to draw a token from its logits. A token depends on (logits, sampling, position) and nothing else but, if the
    sampling looks back, the request's tokens before it.

    In this order: the penalties and the bias change logits, then comes the temperature, then top_k, top_p and min_p
    leave tokens out. With temperature 0 the largest logit is taken after penalties and bias.
    """

    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0  # 0 is greedy
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    seed: int = 0
    top_k: Annotated[int, Meta(ge=0, lt=2**31)] = 0  # so many likeliest tokens; 0: all
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0  # tokens at least so likely, of the likeliest one's probability
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0  # of what was generated, once
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0  # for each time that it was generated
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0  # divides, of prompt and answer (Keskar et al. 2019)
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    logprobs: Annotated[int, Meta(ge=NO_LOGPROBS, le=20)] = NO_LOGPROBS
    """So many likeliest tokens are told beside each drawn one, with its own log-probability."""

    @property
    def looks_back(self) -> bool:
        """Whether the tokens before matter."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1

    @property
    def changes_logits(self) -> bool:
        """Whether a token is drawn from other logits than the model's."""
        return bool(self.logit_bias) or self.looks_back


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities at one position, from the model's own logits: before penalties, bias and
    temperature.
    """

    drawn: float  # of the token that was drawn
    likeliest: tuple[tuple[TokenId, float], ...] = ()  # the largest first; as many as `Sampling.logprobs`


class Work(msgspec.Struct, frozen=True, array_like=True):
    """One attempt of one request, as the router hands it to both groups of a pair."""

    room: Room
    prompt: tuple[TokenId, ...]
    max_tokens: Annotated[int, Meta(ge=1)]  # tokens to generate
    stop_ids: tuple[int, ...]  # end-of-sequence ids; empty with ignore_eos
    sampling: Sampling
    peer: str | None  # the other group of the pair; None: the group that has it finishes it alone
    priority: Priority = 0  # higher goes first; waiting makes up for it
    salt: Salt = ""  # whose prefixes it may share: prompts of different salts never meet in a cache
    age_ms: Annotated[int, Meta(ge=0)] = 0  # since its first attempt was submitted: later ones keep its place in line
    generated: Annotated[int, Meta(ge=0)] = 0  # so many last tokens of the prompt are an earlier attempt's
    grammar: str = ""  # what the answer must be, as a JSON schema; empty: anything

    @property
    def looks_back(self) -> bool:
        """Whether who draws a token of the answer has to know those before it."""
        return bool(self.grammar) or self.sampling.looks_back

    def due_ms(self, now_ms: int) -> int:
        """Its place in a queue that it joins now: smaller goes first. Ageing is in it, so an order once made stays."""
        return now_ms - self.age_ms - self.priority * PRIORITY_MS

    @property
    def last_position(self) -> int:
        """Tokens whose KV may be needed: the last generated token is never fed back."""
        return len(self.prompt) + self.max_tokens - 1


class Reason(enum.Enum):
    """Why a request left a group. The router alone turns it into the client's answer."""

    STOP = "stop"  # an end-of-sequence token
    LENGTH = "length"  # max_tokens reached
    STOP_STRING = "stop_string"  # the router found a stop string and cancelled the rest
    CLIENT_GONE = "client_gone"
    ABORTED = "aborted"  # an operator said so
    DEADLINE = "deadline"
    QUEUE_FULL = "queue_full"
    KV_CHECKSUM = "kv_checksum"  # its KV was not the same at both ends
    DRAINING = "draining"  # the group takes nothing new
    TOO_LARGE = "too_large"  # does not fit the context or the page pool, now or ever
    TRANSFER_FAILED = "transfer_failed"
    PEER_ENDED = "peer_ended"  # the other group of the pair ended it and said so
    BAD_GRAMMAR = "bad_grammar"  # its grammar cannot be compiled within the limits
    NOT_A_NUMBER = "not_a_number"  # its logits were none, or infinite: no token can be drawn from them
    GROUP_LOST = "group_lost"
    GROUP_LEFT = "group_left"  # it was told to end and could wait no longer


def ending(work: Work, generated: int, token: int) -> Reason | None:
    """Whether `token`, the `generated`-th one (1-based), is the request's last, and why."""
    if token in work.stop_ids:
        return Reason.STOP
    return Reason.LENGTH if generated >= work.max_tokens else None


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // page_size)


def too_large(work: Work, limits: Limits, tokens_kept: int) -> bool:
    """The one rule by which router, prefill and decode refuse a request that could never run.

    `tokens_kept` is what the asking side stores: the prompt on prefill, `last_position` on decode.
    """
    over_context = len(work.prompt) + work.max_tokens > limits.context
    return not work.prompt or over_context or pages_for(tokens_kept, limits.page_size) > limits.num_pages
