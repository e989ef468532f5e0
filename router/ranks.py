"""Asks the HTTP ports of many ranks the same question at once: who does not answer in time is named, not waited for."""

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple

AT_ONCE = 64
"""Connections that are open at once."""
MOST_BYTES = 8 << 20
"""Of one answer."""
HEAD_END = b"\r\n\r\n"


class Heard(NamedTuple):
    """An answer, and when it was asked for and complete: microseconds since 1970, by this host's clock."""

    status: int
    body: bytes
    asked_us: int
    heard_us: int


async def ask_all(addresses: Mapping[str, str], path: str, timeout_s: float) -> tuple[dict[str, Heard], dict[str, str]]:
    """Answers by name, in the order of `addresses` (`host:port`), and why there is none from the others."""
    heard: dict[str, Heard] = {}
    silent: dict[str, str] = {}
    places = asyncio.Semaphore(AT_ONCE)
    until = asyncio.get_running_loop().time() + timeout_s

    async def one(name: str, address: str) -> None:
        try:
            async with asyncio.timeout_at(until), places:
                heard[name] = await ask(address, path)
        except TimeoutError:
            silent[name] = f"it did not answer within {timeout_s:g} s"
        except (OSError, ValueError) as error:
            silent[name] = f"it cannot be asked at {address!r}: {error}"

    await asyncio.gather(*(one(name, address) for name, address in addresses.items()))
    return {name: heard[name] for name in addresses if name in heard}, silent


async def ask(address: str, path: str) -> Heard:
    """One GET. Raises OSError when nobody answers, ValueError for what is no answer."""
    host, _, port = address.rpartition(":")
    asked_us = _now_us()
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = bytearray()
        while piece := await reader.read(1 << 16):
            answer += piece
            if len(answer) > MOST_BYTES:
                raise ValueError(f"it answers with more than {MOST_BYTES} bytes")
    finally:
        writer.close()
    head, end, body = bytes(answer).partition(HEAD_END)
    words = head.split(None, 2)
    if not end or len(words) < 2 or not words[1].isdigit():
        raise ValueError("it answers with no HTTP")
    return Heard(int(words[1]), body, asked_us, _now_us())


def _now_us() -> int:
    return time.time_ns() // 1000
