"""The Server-Timing header: where the time went until the first token, as far as the router has seen it."""

from router.choices import Choices


def server_timing(choices: Choices, arrived: float, queued_s: float) -> bytes:
    """Parts in milliseconds. Of several choices the one that was first; what has not happened yet is left out."""
    parts = [("queue", queued_s)]
    begun = [exchange for exchange in choices.exchanges if exchange.first_at is not None]
    if begun:
        first = min(begun, key=lambda exchange: exchange.first_at or 0.0)
        assert first.first_at is not None
        parts.append(("prefill", first.first_at - first.opened))
        if first.handed_over_at is not None:
            parts.append(("transfer", first.handed_over_at - first.first_at))
        parts.append(("first-token", first.first_at - arrived))
    return ", ".join(f"{name};dur={1000 * seconds:.1f}" for name, seconds in parts).encode()
