"""A cluster as its router sees it and as its ranks tell of themselves: GET /cluster, for `tandem status`."""

import msgspec


class RankView(msgspec.Struct, omit_defaults=True):
    """One rank. What a rank that is not ready does not say has its default; `silent`: why it says nothing."""

    rank: int
    http: str = ""
    host: str = ""
    ready: bool = False
    silent: str = ""
    waiting_for: str = ""
    epoch: int = 0
    epochs: int = 0  # that have ended under this process
    last_end: str = ""  # why the last of them did
    tick: int = -1
    ticks_in_flight: int = 0
    awaiting: str = ""
    engine: str = ""
    engine_why: str = ""
    engine_fallback: bool = False
    degraded: str = ""
    draining: bool = False
    paused: bool = False
    rooms: int = 0
    running: int = 0
    waiting: int = 0
    pages: dict[str, int] = {}  # by state, and `total`
    held_pages: int = 0  # of ended rooms, for peer groups; rank 0 alone knows

    @property
    def faults(self) -> list[str]:
        """What is not as it should be, each to complete the sentence `p0 rank 1 ...`."""
        found = []
        if self.silent:
            found.append(f"was not heard: {self.silent}")
        elif not self.ready:
            after = f", after its epoch has ended: {self.last_end}" if self.last_end else ""
            found.append(f"waits for {self.waiting_for}{after}")
        if self.degraded:
            found.append(f"is degraded: {self.degraded}")
        return found


class GroupView(msgspec.Struct, omit_defaults=True):
    """One group. `cause`: what keeps it from taking requests, or from working on them.

    `open`: requests of the router that asked.
    """

    name: str
    role: str
    state: str
    cause: str
    layers: list[int]
    open: int
    ranks: list[RankView]

    @property
    def head(self) -> RankView:
        """Rank 0, which speaks for the group."""
        return self.ranks[0]

    @property
    def usable(self) -> bool:
        """Whether it takes requests."""
        return self.state == "usable"


class RouterView(msgspec.Struct):
    """The router that was asked. `cause`: why it is not ready."""

    state: str
    cause: str
    open: int
    admitted: int
    queued: int
    migrated: int
    registry_up: bool
    registry_stale_s: float


class ClusterView(msgspec.Struct):
    """All of it."""

    router: RouterView
    groups: list[GroupView]

    def group(self, name: str) -> GroupView | None:
        """The group of this name."""
        return next((group for group in self.groups if group.name == name), None)

    @property
    def remarks(self) -> list[str]:
        """What is no fault and may surprise: groups whose engine is not the fastest, and why. In sentences."""
        return [
            f"{group.name} computes with {engine}: {why}"
            for group in self.groups
            for engine, why in dict.fromkeys(
                (rank.engine, rank.engine_why) for rank in group.ranks if rank.engine_fallback
            )
        ]

    @property
    def faults(self) -> list[str]:
        """What is not as it should be, in sentences; none: all is well."""
        found = [f"the router is {self.router.state}: {self.router.cause}"] if self.router.state != "ready" else []
        found += [] if self.router.registry_up else ["the router cannot read the registry"]
        for group in self.groups:
            found += [f"group {group.name} {group.cause}"] if group.cause else []
            found += [f"{group.name} rank {rank.rank} {fault}" for rank in group.ranks for fault in rank.faults]
        return found
