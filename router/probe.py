"""GET /health_generate: a request of the router's own, from its prompt to a token of a decode group."""

import asyncio

from router.asked import Asked
from router.beginning import Beginning
from router.errors import deadline_passed
from tandem.core.ids import RequestId
from tandem.core.requests import Sampling

PROBE_S = 20.0
"""Time for it; multiplied by the timer scale."""
TOKENS = 2
"""The first is prefill's, the second decode's own: no smaller request sees the hand-over."""


async def generate_once(beginning: Beginning, rid: RequestId) -> dict[str, object]:
    """Where it was computed, and how long it took. Raises ApiError."""
    service, time = beginning.service, asyncio.get_running_loop().time
    begun = time()
    prompt = tuple(service.model.tokenizer.encode_text("a"))
    ask = Asked(
        prompts=(prompt,),
        prompt_param="prompt",
        n=1,
        max_tokens=TOKENS,
        max_tokens_param="max_tokens",
        sampling=Sampling(),
        stop_ids=(),
        stops=(),
        streaming=False,
        include_usage=False,
        priority=0,
        salt="",
    )
    choices = beginning.open(ask, rid, begun + PROBE_S * service.rules.timer_scale)
    try:
        await choices.finish()
    finally:
        choices.abandon()
    if choices.failure is not None:
        late = choices.failure.status == 504
        raise deadline_passed(PROBE_S * service.rules.timer_scale) if late else choices.failure
    route = choices.exchanges[0].attempt.route
    return {"status": "ok", "groups": list(route.names), "duration_ms": round(1000 * (time() - begun), 1)}
