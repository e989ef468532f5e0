"""Chooses and builds the engine of one stage. torch is imported only when a real model asks for it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tandem.core.config import EngineName
from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId
from tandem.core.requests import pages_for
from tandem.engine.fake import FakeEngine
from tandem.engine.memory import HostPages, PageMemory
from tandem.engine.model import ITEM_BYTES, block_bytes
from tandem.engine.shape import ModelShape
from tandem.ports import Engine, HostCopies, Memory

CPU_INFO = Path("/proc/cpuinfo")
MEMORY_INFO = Path("/proc/meminfo")
MAX_DEFAULT_PAGES = 65_536

LAYOUTS: dict[EngineName, str] = {
    "cpu": "packed per KV head, as tandem.engine.cpu reads it",
    "torch": "[2, page_size, kv_heads, head_dim]",
    "flashinfer": "[2, page_size, kv_heads, head_dim]",
    "fake": "[page_size, 2] uint64",
}
"""The order of the items in a page: groups whose engines share it may exchange KV."""
AS_TOLD = "as told"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What computes the model here, in which dtype (resolved), and why it and no other."""

    name: EngineName
    dtype: str
    why: str
    fallback: bool = False
    """It stands in for a faster one."""

    @property
    def layout(self) -> str:
        """The order of the items in a page of its KV cache."""
        return LAYOUTS[self.name]

    @property
    def engine(self) -> str:
        """For people, without the reason."""
        return self.name if self.name == "fake" else f"{self.name}, {self.dtype}"

    @property
    def told(self) -> dict[str, object]:
        """In a rank's /state."""
        return {"engine": self.engine, "engine_why": self.why, "engine_fallback": self.fallback}

    def __str__(self) -> str:
        return f"engine {self.engine}: {self.why}"


def build_engine(
    shape: ModelShape,
    layers: tuple[LayerId, LayerId],
    *,
    page_size: int,
    num_pages: int,
    dtype: str = "auto",
    engine: EngineName = "auto",
    threads: int = 1,
    beside: str = "",
    shared: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """The engine for the layers [first, last) of a model, with an empty page pool.

    `dtype` is float32, bfloat16 or auto; see `choose` for it and for `engine`. All engines of a process have the same
    `threads`; CPU engines with one folder `beside` them share this machine's cores. Other processes may read a `shared`
    pool by its memfd. `progress` hears (tensors loaded, tensors to load). Raises ConfigError.
    """
    first, last = layers
    if not 0 <= first < last <= shape.layers:
        raise ConfigError(f"layers are {first} to {last}: model {shape.name!r} has {shape.layers}")
    if page_size < 1:
        raise ConfigError(f"page-size is {page_size}: it must be at least 1")
    if threads < 1:
        raise ConfigError(f"threads is {threads}: it must be at least 1")
    chosen = choose(shape, dtype, engine, page_size)
    if chosen.name == "flashinfer":
        return _build_flashinfer(shape, layers, page_size, num_pages, shared, progress)
    memory = PageMemory(layers, num_pages, block_bytes(shape, chosen.dtype, page_size), shared=shared)
    match chosen.name:
        case "fake":
            return FakeEngine(memory, page_size=page_size, last=last == shape.layers, context=shape.context)
        case "torch":
            return _build_torch(shape, memory, page_size, chosen.dtype, threads, progress)
        case "cpu":
            return _build_cpu(shape, memory, page_size, threads, beside, progress)
        case _:
            raise AssertionError(f"{chosen} was chosen, and nothing builds it")


def _build_torch(
    shape: ModelShape,
    memory: PageMemory,
    page_size: int,
    dtype: str,
    threads: int,
    progress: Callable[[int, int], None] | None,
) -> Engine:
    import torch

    from tandem.engine.linear import pack_head, pack_layer
    from tandem.engine.torch_engine import TorchEngine
    from tandem.engine.weights import DTYPES, StageWeights, load_stage

    torch.set_num_threads(threads)  # of the whole process: torch knows no other way
    region = memory.region
    layers, ends = load_stage(shape, (region.first_layer, region.last_layer), DTYPES[dtype], pack_layer, progress)
    return TorchEngine(shape, pack_head(StageWeights(layers, *ends)), memory, page_size=page_size)


def _build_cpu(
    shape: ModelShape,
    memory: PageMemory,
    page_size: int,
    threads: int,
    beside: str,
    progress: Callable[[int, int], None] | None,
) -> Engine:
    import torch

    from tandem.engine.cpu.build import isas_of_this_machine, native
    from tandem.engine.cpu.cores import Place
    from tandem.engine.cpu.engine import CpuEngine
    from tandem.engine.cpu.packed import PackedWeights
    from tandem.engine.weights import load_stage

    torch.set_num_threads(1)  # it only samples: threads that spin after a short task would hold up the engine's own
    try:
        place = Place(beside) if beside else None
    except OSError as error:
        raise ConfigError(f"no place beside this machine's other stages: {error}") from None
    first, last = memory.region.first_layer, memory.region.last_layer
    packed = PackedWeights(native(isas_of_this_machine()[0]), shape, last - first, last=last == shape.layers)
    _, ends = load_stage(shape, (first, last), torch.bfloat16, packed.add, progress)
    packed.end(ends)
    return CpuEngine(shape, packed, memory, page_size=page_size, threads=threads, place=place)


def _build_flashinfer(
    shape: ModelShape,
    layers: tuple[LayerId, LayerId],
    page_size: int,
    num_pages: int,
    shared: bool,
    progress: Callable[[int, int], None] | None,
) -> Engine:
    import torch

    from tandem.engine.flashinfer.engine import on_gpu
    from tandem.engine.flashinfer.memory import DeviceMemory
    from tandem.engine.flashinfer.stage import moved
    from tandem.engine.weights import StageWeights, load_stage

    if shared:
        raise ConfigError(
            "--disaggregation-transfer-backend is shm, which copies host memory: use mooncake with --engine flashinfer"
        )
    device = torch.device("cuda", torch.cuda.current_device())
    memory = DeviceMemory(layers, num_pages, block_bytes(shape, "bfloat16", page_size), device)
    found, ends = load_stage(shape, layers, torch.bfloat16, partial(moved, device=device), progress)
    return on_gpu(shape, StageWeights(found, *ends), memory, page_size=page_size)


def build_host_pages(memory: Memory, num_pages: int) -> HostCopies:
    """Host memory for pages of an engine's pool, of the kind that suits it. Raises ConfigError."""
    if isinstance(memory, PageMemory):
        return HostPages(memory, num_pages)
    from tandem.engine.flashinfer.memory import DeviceMemory, PinnedPages

    assert isinstance(memory, DeviceMemory)
    return PinnedPages(memory, num_pages)


def choose(shape: ModelShape, dtype: str, wanted: EngineName, page_size: int) -> Chosen:
    """The engine for a model on this machine. `dtype` is float32, bfloat16 or auto: what suits the engine.

    Raises ConfigError when the wanted engine cannot be had, with what stands in its way.
    """
    if shape.is_fake or wanted == "fake":
        return _choose_fake(shape, dtype, wanted)
    if wanted == "torch":
        return Chosen(wanted, resolve_dtype(dtype), AS_TOLD)
    given = resolve_dtype(dtype) if dtype != "auto" else "bfloat16"
    name: EngineName = "cpu" if wanted == "auto" else wanted
    obstacle = _obstacle(name, shape, given, page_size)
    if not obstacle:
        return Chosen(name, given, AS_TOLD if wanted != "auto" else "the fastest on this CPU")
    if wanted != "auto":
        raise ConfigError(f"--engine is {wanted}, but {obstacle}: use another one, such as torch")
    return Chosen("torch", resolve_dtype(dtype), f"not cpu, as {obstacle}", fallback=True)


def _choose_fake(shape: ModelShape, dtype: str, wanted: EngineName) -> Chosen:
    """Only this engine computes fake models, and it computes no others."""
    if not shape.is_fake:
        raise ConfigError(f"--engine is fake, but {shape.name!r} is a real model: leave --engine out")
    if wanted not in ("auto", "fake"):
        raise ConfigError(f"--engine is {wanted}, but {shape.name!r} is a fake model: leave --engine out")
    return Chosen("fake", resolve_dtype(dtype), "the model is fake")


def _obstacle(name: EngineName, shape: ModelShape, dtype: str, page_size: int) -> str:
    """Why an engine that is not always there cannot be had for a model; empty: it can."""
    if dtype != "bfloat16":
        return f"it computes in bfloat16, and --dtype is {dtype}"
    if name == "cpu":
        from tandem.engine.cpu.build import obstacle
    else:
        from tandem.engine.flashinfer.build import obstacle
    return obstacle(shape, dtype, page_size)


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
