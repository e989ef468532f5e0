"""An operator's orders to a whole group, as the admin port takes them."""

import msgspec

from router.errors import ApiError
from router.schema import read
from tandem.core.config import Limits
from tandem.core.inputs import Control, Knobs, Order, TickTokens


class KnobsBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /workers/{group}/knobs: new values, as long as the group runs. Null and absent: as it is."""

    max_prefill_tokens: TickTokens | None = None
    chunked_prefill_size: TickTokens | None = None


def control_of(name: str, peer: str = "") -> Control:
    """Raises ApiError 400 for an order that does not exist, and for a release that names no peer, or others that do."""
    try:
        order = Order(name)
    except ValueError:
        names = ", ".join(order.value for order in Order)
        raise ApiError(400, "unknown_order", f"{name[:64]!r} is no order: give one of {names}", "order") from None
    if order is Order.RELEASE and not peer:
        text = "release is about pages held for a peer group: name it, such as ?peer=p0"
        raise ApiError(400, "missing_required_parameter", text, "peer")
    if order is not Order.RELEASE and peer:
        raise ApiError(400, "unknown_parameter", f"{order.value} concerns no peer group: leave peer out", "peer")
    return Control(order, peer)


def words(order: Control | Knobs) -> str:
    """For the log."""
    if isinstance(order, Control):
        return f"{order.order.value} {order.peer}".rstrip()
    given = {name: getattr(order, name) for name in order.__struct_fields__}
    return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)


def knobs_of(payload: bytes, limits: Limits) -> Knobs:
    """Raises ApiError 400 that names the field. `limits` are those that the group was started with."""
    body = read(payload, KnobsBody)
    if body.max_prefill_tokens is None and body.chunked_prefill_size is None:
        names = " or ".join(KnobsBody.__struct_fields__)
        raise ApiError(400, "missing_required_parameter", f"nothing to change: give {names}")
    if (body.max_prefill_tokens or 0) > (most := limits.max_prefill_tokens):
        # Buffers between the stages were made for so many.
        text = f"max_prefill_tokens is {body.max_prefill_tokens}: the group was started with {most}, its most"
        raise ApiError(400, "invalid_value", text, "max_prefill_tokens")
    return Knobs(body.max_prefill_tokens, body.chunked_prefill_size)
