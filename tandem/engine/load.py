"""Builds the engine of one stage. torch is imported only when a real model asks for it."""

from collections.abc import Callable
from pathlib import Path

from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId
from tandem.core.requests import pages_for
from tandem.engine.fake import FakeEngine
from tandem.engine.memory import PageMemory
from tandem.engine.model import ITEM_BYTES, ModelShape, block_bytes
from tandem.ports import Engine

CPU_INFO = Path("/proc/cpuinfo")
MEMORY_INFO = Path("/proc/meminfo")
MAX_DEFAULT_PAGES = 65_536


def build_engine(
    shape: ModelShape,
    layers: tuple[LayerId, LayerId],
    *,
    page_size: int,
    num_pages: int,
    dtype: str = "auto",
    threads: int = 1,
    shared: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """The engine for the layers [first, last) of a model, with an empty page pool.

    `dtype` is float32, bfloat16 or auto. All engines of a process have the same `threads`. Other processes may read a
    `shared` pool by its memfd. `progress` hears (tensors loaded, tensors to load). Raises ConfigError.
    """
    first, last = layers
    if not 0 <= first < last <= shape.layers:
        raise ConfigError(f"layers are {first} to {last}: model {shape.name!r} has {shape.layers}")
    if page_size < 1:
        raise ConfigError(f"page-size is {page_size}: it must be at least 1")
    if threads < 1:
        raise ConfigError(f"threads is {threads}: it must be at least 1")
    dtype = resolve_dtype(dtype)
    memory = PageMemory(layers, num_pages, block_bytes(shape, dtype, page_size), shared=shared)
    if shape.is_fake:
        return FakeEngine(memory, page_size=page_size, last=last == shape.layers, context=shape.context)
    import torch

    from tandem.engine.torch_engine import TorchEngine
    from tandem.engine.weights import DTYPES, load_weights

    torch.set_num_threads(threads)  # of the whole process: torch knows no other way
    weights = load_weights(shape, layers, DTYPES[dtype], progress)
    return TorchEngine(shape, weights, memory, page_size=page_size)


def resolve_dtype(dtype: str, cpu_info: Path = CPU_INFO) -> str:
    """float32 or bfloat16; auto is bfloat16 where the CPU multiplies it natively. Raises ConfigError for others."""
    if dtype in ITEM_BYTES:
        return dtype
    if dtype != "auto":
        raise ConfigError(f"dtype is {dtype!r}: give auto, {' or '.join(ITEM_BYTES)}")
    try:
        lines = cpu_info.read_text().splitlines()
    except OSError:
        return "float32"
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    return "bfloat16" if flags & {"avx512_bf16", "amx_bf16"} else "float32"


def default_num_pages(
    shape: ModelShape, dtype: str, page_size: int, layers: int, *, share: float = 0.2, memory_info: Path = MEMORY_INFO
) -> int:
    """Pages that fit `share` of the memory now available, of `layers` layers of this stage; at most 65,536.

    Never fewer than one whole context, whatever the memory. `dtype` is resolved, not "auto".
    """
    page_bytes = layers * block_bytes(shape, dtype, page_size)
    lines = memory_info.read_text().splitlines()
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
    least = pages_for(shape.context, page_size)
    return max(least, min(MAX_DEFAULT_PAGES, int(available * share) // page_bytes))
