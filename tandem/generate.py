"""`tandem generate`: the whole model in this process, without a cluster."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
from rich.console import Console
from rich.progress import Progress

from tandem.core.config import EngineName, Limits
from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId, RequestId, Room
from tandem.core.requests import Sampling, Work, pages_for
from tandem.engine import solo
from tandem.engine.load import build_engine
from tandem.engine.model import read_shape
from tandem.engine.tokens import Tokenizer, load_tokenizer

PAGE_SIZE = Limits().page_size


class GenerateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `tandem generate`."""

    prompt: str
    model: str
    max_tokens: int
    sampling: Sampling
    raw: bool
    dtype: str
    engine: EngineName
    threads: int


def generate(options: GenerateOptions) -> int:
    """Write the text to standard output as it comes, and figures to standard error. Raises ConfigError."""
    shape = read_shape(options.model)
    tokenizer = load_tokenizer(options.model, shape)
    prompt = encode(tokenizer, options)
    if not prompt or len(prompt) + options.max_tokens > shape.context:
        raise ConfigError(
            f"the prompt has {len(prompt)} tokens and --max-tokens is {options.max_tokens}: "
            f"give at least 1 token, and at most {shape.context} in all"
        )
    work = Work(Room(RequestId(1), 1), tuple(prompt), options.max_tokens, tokenizer.eos_ids, options.sampling, None)
    with loading() as progress:
        engine = build_engine(
            shape,
            (LayerId(0), LayerId(shape.layers)),
            page_size=PAGE_SIZE,
            num_pages=pages_for(work.last_position, PAGE_SIZE),
            dtype=options.dtype,
            engine=options.engine,
            threads=options.threads,
            progress=progress,
        )
    detokenizer = tokenizer.detokenizer()
    times_s = [time.perf_counter()]
    for token in solo.generate(engine, work, page_size=PAGE_SIZE):
        times_s.append(time.perf_counter())
        if token not in work.stop_ids:
            print(detokenizer.push(token), end="", flush=True)
    print(detokenizer.finish(), flush=True)
    print(figures(len(prompt), times_s), file=sys.stderr)
    return 0


def encode(tokenizer: Tokenizer, options: GenerateOptions) -> list[int]:
    """The prompt's ids: as one turn of a chat, unless it is raw or the model has no chat."""
    if options.raw or not tokenizer.has_chat:
        return tokenizer.encode_text(options.prompt)
    return tokenizer.encode_chat([{"role": "user", "content": options.prompt}])


def figures(prompt: int, times_s: list[float]) -> str:
    """`times_s`: the start, then when each token came."""
    tokens = len(times_s) - 1
    first_s = times_s[1] - times_s[0]
    text = f"{prompt} prompt tokens, {tokens} tokens, first token after {first_s * 1000:.0f} ms"
    if tokens > 1:
        text += f", then {(tokens - 1) / (times_s[-1] - times_s[1]):.1f} tok/s"
    return text


@contextlib.contextmanager
def loading() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar for the weights, on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("loading the weights", total=None)
        yield lambda loaded, total: bar.update(task, completed=loaded, total=total)
