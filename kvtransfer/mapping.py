"""Which layers go from which prefill stage to which decode stage, for any P, any D and any partition."""

from collections.abc import Mapping

from tandem.core.ids import LayerId, RankId
from tandem.core.messages import Hello, Region


def overlap(first: LayerId, last: LayerId, region: Region) -> tuple[LayerId, LayerId]:
    """The layers of [first, last) that a peer's region holds too, as a range that may be empty."""
    low = max(first, region.first_layer)
    return low, max(low, min(last, region.last_layer))


def owners(first: LayerId, last: LayerId, peers: Mapping[RankId, Hello]) -> dict[LayerId, RankId] | None:
    """Which peer rank owns each layer of [first, last); None while a layer's owner is not known."""
    found: dict[LayerId, RankId] = {}
    for rank, hello in peers.items():
        low, high = overlap(first, last, hello.region)
        found.update((LayerId(layer), rank) for layer in range(low, high))
    return found if len(found) == last - first else None
