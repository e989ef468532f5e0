"""Which engine would compute a model on this host, and what its native code is built with. Without torch."""

from collections.abc import Iterator

from tandem.core.config import Limits
from tandem.core.errors import ConfigError
from tandem.doctor.report import Finding, fail, ok, warn
from tandem.engine.cpu import build
from tandem.engine.load import choose
from tandem.engine.model import bundled_model_path, read_shape


def try_engines(model: str) -> Iterator[Finding]:
    """`model` may be empty: the bundled one. Native code that is not there yet is built, as a rank would do it."""
    yield try_compiler()
    yield try_engine(model)


def try_compiler() -> Finding:
    """The compiler and the folder for what it makes: one of them may be missing where all is built already."""
    try:
        isa = build.isas_of_this_machine()[0]
    except build.BuildError as error:
        return ok("compiler", f"not needed: {error}")
    if (beside := build.beside(isa)) is not None:
        return ok("compiler", f"not needed: {beside} is there")
    try:
        return ok("compiler", f"{build.compiler()} for {isa.name}; builds are kept in {build.cache()}")
    except build.BuildError as error:
        return warn("compiler", str(error))


def try_engine(model: str) -> Finding:
    """What `--engine auto` takes, and why."""
    try:
        shape = read_shape(model or str(bundled_model_path()))
    except ConfigError as error:
        return fail("engine", str(error)) if model else warn("engine", str(error))
    chosen = choose(shape, "auto", "auto", Limits().page_size)
    text = f"--engine auto takes {chosen.engine} for {shape.name}: {chosen.why}"
    return warn("engine", text) if chosen.name == "torch" else ok("engine", text)
