"""Open-loop load from a process of its own: requests go out when they are due, whatever became of those before."""

import asyncio
import json
import random
import time

import msgspec

from bench.apart import answer, apart, ordered

READ_BYTES = 1 << 16


class Offered(msgspec.Struct, frozen=True):
    """What is sent, and where."""

    host: str
    port: int
    per_s: float
    seconds: float
    tokens: int
    seed: int
    patience_s: float  # after which a client goes away


class Outcome(msgspec.Struct, frozen=True):
    """Of one request. Times are seconds since it was due, so a late client is not a fast server."""

    status: int  # 0: no answer
    first_s: float
    last_s: float
    tokens: int
    retry_after_s: int = 0


def run(offered: Offered) -> list[Outcome]:
    """Offer it now; what became of every request."""
    return apart("bench.open_loop", offered, list[Outcome])


async def one(offered: Offered, due: float, prompt: list[int]) -> Outcome:
    """Stream a completion over a connection of its own."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": offered.tokens, "ignore_eos": True, "stream": True}
    payload = json.dumps({**body, "temperature": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(payload)}\r\n\r\n"
    first_s, tokens, status, retry_after_s, rest = 0.0, 0, 0, 0, b""
    try:
        async with asyncio.timeout_at(due + offered.patience_s):
            reader, writer = await asyncio.open_connection(offered.host, offered.port)
            writer.write(head.encode() + payload)
            top = await reader.readuntil(b"\r\n\r\n")
            status = int(top[9:12])
            for line in top.lower().split(b"\r\n"):
                if line.startswith(b"retry-after: "):
                    retry_after_s = int(line[13:])
            while data := await reader.read(READ_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                found = sum(line.startswith(b"data: {") and b'"text":""' not in line for line in whole)
                if found and not tokens:
                    first_s = time.monotonic() - due
                tokens += found
                if any(line.startswith(b'data: {"error"') for line in whole):
                    status = 0
            writer.close()
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        status = 0
    return Outcome(status, first_s, time.monotonic() - due, tokens, retry_after_s)


async def load(offered: Offered) -> list[Outcome]:
    """Poisson arrivals at the rate, for so long; then wait for all."""
    rng = random.Random(offered.seed)
    tasks: list[asyncio.Task[Outcome]] = []
    due = time.monotonic() + 0.1
    end = due + offered.seconds
    while True:
        due += rng.expovariate(offered.per_s)
        if due >= end:
            return list(await asyncio.gather(*tasks))
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(one(offered, due, [rng.randrange(97, 122) for _ in range(32)])))


if __name__ == "__main__":
    answer(asyncio.run(load(ordered(Offered))))
