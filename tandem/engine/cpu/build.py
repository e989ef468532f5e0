"""Builds the native code for this machine on first use, and says why it cannot serve where it cannot.

`python -m tandem.engine.cpu.build` builds all of it beside the sources, for images without a compiler.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tandem.engine.cpu.native import Native
from tandem.engine.shape import SUPPORTED, ModelShape

CPU_INFO = Path("/proc/cpuinfo")
SOURCES = Path(__file__).parent
BESIDE = SOURCES / "built"
UNITS = ("packing.cpp", "stage.cpp")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", "-pthread", "-w")
COMPILERS = ("c++", "g++", "clang++")
COMPILE_S = 300
"""A compiler that takes longer has stopped: it needs a few seconds of a core."""

HEAD_DIMS = (64, 96, 128)
MOST_GROUP = 8
PAGE_SIZES = (16, 32, 64)
SEAL_BYTES = hashlib.sha256().digest_size
UNFIT = (OSError, AttributeError)
"""Of a library that cannot be loaded, or has not our functions."""


class Isa(NamedTuple):
    """One build: an instruction set by name, what /proc/cpuinfo must show for it, and the compiler's flags."""

    name: str
    needs: tuple[str, ...]
    flags: tuple[str, ...]


_AVX2 = Isa("avx2", ("avx2", "fma"), ("-mavx2", "-mfma"))
_AVX512 = Isa(
    "avx512",
    (*_AVX2.needs, "avx512f", "avx512bw", "avx512vl", "avx512dq"),
    (*_AVX2.flags, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
)
_AVX512_BF16 = Isa("avx512bf16", (*_AVX512.needs, "avx512_bf16"), (*_AVX512.flags, "-mavx512bf16"))
ISAS = (_AVX512_BF16, _AVX512, _AVX2)
"""The fastest first."""


class BuildError(Exception):
    """The native code cannot be had on this machine; the text says why, and what would help."""


def obstacle(shape: ModelShape, dtype: str, page_size: int) -> str:
    """Why this backend cannot compute the model on this machine; empty: it can. Compiles on first use."""
    if found := misfit(shape, dtype, page_size):
        return found
    try:
        native(isas_of_this_machine()[0])
    except BuildError as error:
        return str(error)
    return ""


def misfit(shape: ModelShape, dtype: str, page_size: int) -> str:
    """Why no machine could compute it with this backend; empty: some can. `dtype` is resolved, not "auto"."""
    group, left = divmod(shape.heads, max(1, shape.kv_heads))
    if shape.architecture not in SUPPORTED:
        return f"the architecture is {shape.architecture!r}: supported are {', '.join(SUPPORTED)}"
    if dtype != "bfloat16":
        return f"the dtype is {dtype}: it computes in bfloat16"
    if shape.head_dim not in HEAD_DIMS:
        return f"head_dim is {shape.head_dim}: supported are {HEAD_DIMS}"
    if left or not 1 <= group <= MOST_GROUP:
        return f"{shape.heads} heads share {shape.kv_heads} keys: supported are groups of 1 to {MOST_GROUP}"
    if shape.hidden % 32 or shape.intermediate % 16:
        return f"the widths are {shape.hidden} and {shape.intermediate}: they must be multiples of 32 and 16"
    if page_size not in PAGE_SIZES:
        return f"page-size is {page_size}: supported are {PAGE_SIZES}"
    return ""


def isas_of_this_machine(cpu_info: Path = CPU_INFO) -> list[Isa]:
    """The instruction sets that it has, the fastest first. Raises BuildError when it has none of them."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise BuildError(f"this is {platform.system()} on {platform.machine()}: it is written for Linux on x86-64")
    try:
        lines = cpu_info.read_text().splitlines()
    except OSError as error:
        raise BuildError(f"the CPU is unknown: {error}") from error
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    found = [isa for isa in ISAS if flags.issuperset(isa.needs)]
    if not found:
        raise BuildError("the CPU has no AVX2: it needs AVX2, AVX512F or AVX512-BF16")
    return found


def native(isa: Isa) -> Native:
    """One build, loaded. One that is of another machine, which may share the folder, is built again, once.

    Raises BuildError.
    """
    path = library(isa)
    with suppress(*UNFIT):
        return Native(path)
    path = library(isa, unfit=_identity(path))
    try:
        return Native(path)
    except UNFIT as error:
        raise BuildError(f"the native code in {str(path)!r} cannot be loaded: {error}") from error


def library(isa: Isa, unfit: tuple[int, int] | None = None) -> Path:
    """The shared library of one build: from beside the sources, else from the user's cache, where it is built.

    One that is damaged is built again, and so is one of the identity `unfit`. Several processes may ask at once: one
    compiles, the others wait for it. Raises BuildError.
    """
    if (found := beside(isa, unfit)) is not None:
        return found
    folder = cache()
    wanted = folder / _name(isa)
    if not _is_fit(wanted, unfit):
        try:
            with _alone(folder / f"{wanted.name}.lock"):
                if not _is_fit(wanted, unfit):
                    _compile(isa, wanted)
        except OSError as error:
            raise BuildError(f"the cache cannot be written: {error}; set XDG_CACHE_HOME") from error
    return wanted


def beside(isa: Isa, unfit: tuple[int, int] | None = None) -> Path | None:
    """A build that lies beside the sources, whole and not of the identity `unfit`."""
    found = BESIDE / _name(isa)
    return found if _is_fit(found, unfit) else None


def _name(isa: Isa) -> str:
    return f"{isa.name}-{_digest(isa)}.so"


def _is_fit(path: Path, unfit: tuple[int, int] | None) -> bool:
    """Whether it is there, as it was built. To load one that is cut short would kill the process."""
    try:
        found = path.read_bytes()
        return found[-SEAL_BYTES:] == _seal(found[:-SEAL_BYTES]) and _identity(path) != unfit
    except OSError:
        return False


def _identity(path: Path) -> tuple[int, int]:
    """Another one when the file has been replaced."""
    about = path.stat()
    return about.st_ino, about.st_mtime_ns


def _seal(content: bytes) -> bytes:
    """What follows the library in its file, where a loader does not look."""
    return hashlib.sha256(content).digest()


def _digest(isa: Isa) -> str:
    digest = hashlib.sha256(repr((UNITS, FLAGS, isa)).encode())
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".h", ".cpp"):
            digest.update(f"{source.name} {source.stat().st_size}\n".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def cache() -> Path:
    """A folder of this user alone: what lies there is run. Raises BuildError when there can be none.

    So is the one around it, or others could put another folder in its place after a look at it.
    """
    try:
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = named if named.is_absolute() else Path.home() / ".cache"  # a relative one means nothing, says XDG
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (base / "tandem", base / "tandem" / "cpu"):
            folder.mkdir(mode=0o700, exist_ok=True)
            about = folder.stat()
            if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                text = f"{str(folder)!r} can be written by others: make it yours alone, or set XDG_CACHE_HOME"
                raise BuildError(text)
    except (OSError, RuntimeError) as error:
        raise BuildError(f"there is no cache folder for the native code: {error}; set XDG_CACHE_HOME") from error
    return folder


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process that holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def compiler() -> str:
    """The command. Raises BuildError when there is none."""
    found = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise BuildError(f"there is no C++ compiler: install g++, or let CXX name one of {', '.join(COMPILERS)}")
    return found


def _compile(isa: Isa, wanted: Path) -> None:
    command = compiler()
    with tempfile.TemporaryDirectory(dir=wanted.parent, prefix="building-") as folder:
        made = Path(folder, wanted.name)
        arguments = [*command.split(), *FLAGS, *isa.flags, *UNITS, "-o", str(made)]
        try:
            done = subprocess.run(
                arguments, cwd=SOURCES, capture_output=True, text=True, errors="replace", timeout=COMPILE_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"the compiler did not run: {error}") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BuildError(f"{command} failed with status {done.returncode}: {last}")
        with made.open("r+b") as file:
            file.write(_seal(file.read()))
        made.replace(wanted)  # whoever reads it sees all of it, or nothing


def main() -> None:
    """Build all beside the sources."""
    BESIDE.mkdir(exist_ok=True)
    for isa in ISAS:
        wanted = BESIDE / _name(isa)
        _compile(isa, wanted)
        print(wanted)


if __name__ == "__main__":
    main()
