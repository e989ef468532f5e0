"""The ranks of other groups whose handshake is done, as one rank knows them."""

from kvtransfer.mapping import owners
from tandem.core.events import PeerLost, PeerOpened
from tandem.core.ids import LayerId, RankId
from tandem.core.messages import Hello


class Peers:
    """Open peers by group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[RankId, Hello]] = {}
        self._routes: dict[tuple[str, LayerId, LayerId], dict[LayerId, RankId]] = {}  # since a peer came or went

    def on_event(self, event: PeerOpened | PeerLost) -> None:
        """A handshake is done, or a peer is gone."""
        self._routes.clear()
        match event:
            case PeerOpened(hello=hello):
                self._groups.setdefault(hello.group, {})[hello.rank] = hello
            case PeerLost(group=group, rank=rank):
                self._groups.get(group, {}).pop(rank, None)

    def instance(self, group: str, rank: RankId) -> tuple[int, int]:
        """Of an open rank."""
        return self._groups[group][rank].instance

    def renewed(self, group: str, rank: RankId, instance: tuple[int, int]) -> bool:
        """Whether a rank is open as another instance."""
        hello = self._groups.get(group, {}).get(rank)
        return hello is not None and hello.instance != instance

    def route(self, group: str, first: LayerId, last: LayerId) -> dict[LayerId, RankId] | None:
        """Which rank of the group owns each layer of [first, last); None while one of them is not open."""
        key = group, first, last
        if (known := self._routes.get(key)) is not None:
            return known
        found = owners(first, last, self._groups.get(group, {}))
        if found is not None:
            self._routes[key] = found
        return found
