"""What a message is after it has been encoded and decoded: only what can be encoded arrives."""

from typing import Any, TypeVar

import msgspec

Sent = TypeVar("Sent", bound=msgspec.Struct)
encode = msgspec.msgpack.Encoder().encode
DECODERS: dict[type[msgspec.Struct], msgspec.msgpack.Decoder[Any]] = {}


def over_the_wire(message: Sent) -> Sent:
    """What the receiver reads."""
    kind = type(message)
    decoder = DECODERS.get(kind)
    if decoder is None:
        decoder = DECODERS[kind] = msgspec.msgpack.Decoder(kind)
    received: Sent = decoder.decode(encode(message))
    return received
