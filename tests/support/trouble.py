"""A snapshot of a large cluster in which everything is wrong that can be, for a page to show."""

from router.dashboard.words import (
    EdgeNow,
    FirstTokens,
    GroupNow,
    HeldNow,
    LiveNow,
    LossNow,
    PagesNow,
    RankNow,
    RouterNow,
    SlowNow,
    Snapshot,
    Spread,
)

PAIRS = 32
RANKS = 4
ID = "00000000000000ab"
PAIR = {"prefill": "p0", "decode": "d0"}


def trouble(hostile: str) -> Snapshot:
    """Whatever is a name or a cause is `hostile`, and long."""
    why = f"{hostile} {'and so on ' * 20}"
    phases = ("alloc", "bootstrap", "admit", "compute", "exposed", "decode", "queue", "post", "wire", "commit")
    return Snapshot(
        at_us=1_796_063_806_177_361,
        model=hostile,
        version="0.1.0",
        router=RouterNow("not ready", why, 1000, 1024, 1024, 7, 3, 1, 12.5),
        groups=[group(f"{role[0]}{number}", role, why) for role in ("decode", "prefill") for number in range(PAIRS)],
        edges=[
            EdgeNow(f"p{one}", f"d{other}", 10.0 ** (one % 11), 2, "open", 5)
            for one in range(PAIRS)
            for other in range(PAIRS)
        ],
        live=[LiveNow(ID, 2, PAIR, "bootstrapped", False, 8192, (3, 64), 10**9, 5e6, [0.25] * 64)],
        live_count=99,
        phases=[Spread(phase, 512, 1.5, 1e5, 1e7) for phase in phases],
        first_tokens=FirstTokens(512, 1e3, 1e5, {"router queue": 9.0, "alloc": 8.0, "admit": 7.0, "compute": 6.0}),
        slow=[SlowNow(ID, 2, PAIR, 4e5, None, 6e7, "alloc", 8192, None, "failed", hostile, True)],
        held=[HeldNow("d0", f"{ID}.1", hostile, 128, 10**8, True), HeldNow("p0", f"{ID}.1", "d0", 128, 900)],
        held_pages=256,
        losses=[LossNow(3.0, hostile, why), LossNow(4e5, "p3", why)],
        remembered=512,
    )


def group(name: str, role: str, why: str) -> GroupNow:
    ranks = [
        RankNow(f"{name}.{rank}", "[2001:db8::1]:40000", "1883309398939402241", "cpu bfloat16", rank > 1, why, why,
                10**9, rank, 8, "hidden(12)", why, 99.0)
        for rank in range(RANKS)
    ]  # fmt: skip
    pages = PagesNow(1_000_000, 1, 700_000, 199_999, 100_000)
    return GroupNow(name, role, "lost", why, RANKS, 64, 1000, ranks, "8fcc1a16", 4e4, True, 100, 200, pages)
