"""Several completions over HTTP at once, with the moment of each event: one thread, so that the client costs little."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

ANSWER_S = 300.0
READ_BYTES = 1 << 16
EVENT = b"data: {"


@dataclass(frozen=True)
class Stream:
    """One answer. Times are seconds since 1970, as the ranks of this machine tell theirs.

    `events_s` are those with text. An event may carry more than one token, or none that is a whole letter.
    """

    began_s: float
    events_s: tuple[float, ...]
    tokens: int
    request_id: str = ""
    server_ms: dict[str, float] | None = None
    """The Server-Timing header, if there was one."""

    @property
    def first_s(self) -> float:
        """Seconds from the first byte of the request to the first event."""
        return self.events_s[0] - self.began_s


def together(url: str, model: str, prompts: Sequence[Sequence[int]], output: int) -> list[Stream]:
    """Each prompt to exactly `output` tokens, greedy, all sent at once. Raises ConnectionError for any other answer."""
    return asyncio.run(_together(urlsplit(url).netloc, model, prompts, output))


def rate(streams: Sequence[Stream]) -> float:
    """Tokens per second of all together, while all of them ran: from the last first event to the first last one.

    If they never ran at the same time: from the first event of all to the last.
    """
    first_s = max(stream.events_s[0] for stream in streams)
    last_s = min(stream.events_s[-1] for stream in streams)
    if last_s <= first_s:
        first_s = min(stream.events_s[0] for stream in streams)
        last_s = max(stream.events_s[-1] for stream in streams)
    tokens = 0.0
    for stream in streams:
        within = sum(first_s < event_s <= last_s for event_s in stream.events_s)
        tokens += within * stream.tokens / len(stream.events_s)
    return tokens / (last_s - first_s)


def shows(stream: Stream) -> bool:
    """Whether its events tell when its tokens came: at least every other one had text."""
    return 2 * len(stream.events_s) > stream.tokens


def whole_s(streams: Sequence[Stream]) -> float:
    """Seconds from the first byte of the first request to the last event of all."""
    return max(stream.events_s[-1] for stream in streams) - min(stream.began_s for stream in streams)


def made_up(rng: random.Random, vocab: int, count: int) -> list[int]:
    """A prompt that no cache knows."""
    return [rng.randrange(3, vocab) for _ in range(count)]


async def _together(address: str, model: str, prompts: Sequence[Sequence[int]], output: int) -> list[Stream]:
    async with asyncio.timeout(ANSWER_S):
        host, _, port = address.rpartition(":")
        lines = [await asyncio.open_connection(host, int(port)) for _ in prompts]
        asked = [_request(address, model, prompt, output) for prompt in prompts]
        streams = await asyncio.gather(*(_stream(*line, data) for line, data in zip(lines, asked, strict=True)))
    for stream in streams:
        if stream.tokens != output:
            raise ConnectionError(f"{stream.tokens} tokens came, {output} were asked for")
    return streams


def _request(address: str, model: str, prompt: Sequence[int], output: int) -> bytes:
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> Stream:
    with contextlib.closing(writer):
        began_s = time.time()
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        if head[9:12] != b"200":
            raise ConnectionError(f"{head.decode(errors='replace')}{(await reader.read()).decode(errors='replace')}")
        lines = head.decode("latin-1").lower().split("\r\n")[1:-2]
        headers = dict(line.split(": ", 1) for line in lines)
        events, tokens = await _events(reader)
        server_ms = timed(headers.get("server-timing"))
        return Stream(began_s, tuple(events), tokens, headers.get("x-request-id", ""), server_ms)


async def _events(reader: asyncio.StreamReader) -> tuple[list[float], int]:
    """When each with text came, and how many tokens they told of."""
    events: list[float] = []
    tokens, rest = 0, b""
    while part := await reader.read(READ_BYTES):
        now_s = time.time()
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(EVENT):
                texts, used = read(line)
                events += [now_s] * texts
                tokens = used or tokens
    return events, tokens


def read(line: bytes) -> tuple[int, int]:
    """Of an event: whether it has a token's text, and of how many tokens it knows. Raises ConnectionError."""
    event = json.loads(line.removeprefix(b"data: "))
    if "error" in event:
        raise ConnectionError(str(event["error"]))
    texts = sum(bool(choice["text"]) or choice.get("finish_reason") is None for choice in event["choices"])
    return texts, (event.get("usage") or {}).get("completion_tokens", 0)


def timed(header: str | None) -> dict[str, float] | None:
    """Milliseconds by name of a Server-Timing header."""
    if header is None:
        return None
    parts = (part.split(";dur=") for part in header.split(", "))
    return {name: float(value) for name, value in parts}
