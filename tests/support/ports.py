"""Ports for processes that must be told before they start which ones to listen on."""

import random
import socket

BELOW_EPHEMERAL = range(20_000, 32_000)
"""No system hands these out by itself, so nobody takes one between now and its use."""


def free_ports(count: int) -> list[int]:
    """So many different ones that nobody listens on."""
    found: list[int] = []
    for port in random.sample(BELOW_EPHEMERAL, len(BELOW_EPHEMERAL)):
        if len(found) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    assert len(found) == count
    return found
