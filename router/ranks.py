"""Asks the HTTP ports of many ranks the same question at once: who does not answer in time is named, not waited for."""

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from tandem.runtime.history import HeldRoom

AT_ONCE = 64
"""Connections that are open at once."""
MOST_BYTES = 8 << 20
"""Of one answer."""
HEAD_END = b"\r\n\r\n"

T = TypeVar("T")


class Heard(NamedTuple):
    """An answer, and when it was asked for and complete: microseconds since 1970, by this host's clock."""

    status: int
    body: bytes
    asked_us: int
    heard_us: int


class RankState(msgspec.Struct):
    """A rank's /state, as far as a router reads it. Who is not ready says only the first of these."""

    ready: bool
    group: str = ""
    rank: int = -1
    waiting_for: str = ""
    epochs: int = 0
    last_end: str | None = None
    engine: str = ""
    engine_why: str = ""
    engine_fallback: bool = False
    epoch: int = 0
    tick: int | None = None
    ticks_in_flight: int = 0
    awaiting: str | None = None
    degraded: str | None = None
    draining: bool = False
    paused: bool = False
    rooms: int = 0
    running: int = 0
    waiting: int = 0
    pages: dict[str, int] = {}
    held: list[HeldRoom] = []


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


def read(heard: Heard, kind: type[T]) -> T:
    """What was said, as far as `kind` knows of it. Raises ValueError that says why an answer tells nothing."""
    if heard.status != 200:
        raise ValueError(f"it answers with status {heard.status}{_complaint(heard.body)}")
    try:
        return msgspec.json.decode(heard.body, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"it answers with what cannot be read: {error}") from None


def check_name(found: str, asked: str) -> None:
    """Raises ValueError for another rank's answer: an address such as 127.0.0.1 means another host here than there."""
    if found != asked:
        raise ValueError(f"{found} answers at its address: give it an --http-host that the router can reach")


class _Complaint(msgspec.Struct):
    """How a rank says what is wrong."""

    error: str


def _complaint(body: bytes) -> str:
    try:
        return f": {msgspec.json.decode(body, type=_Complaint).error}"
    except msgspec.DecodeError:
        return ""


def _now_us() -> int:
    return time.time_ns() // 1000
