"""Style as a test: floors, bans, sizes and docstrings, read from the syntax trees of the packages."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("tandem", "consensus", "prefill", "decode", "colocated", "kvtransfer", "router", "bench", "k8s")

FLOORS = {
    # 8 what reads the command's own flags
    "k8s.render": 8,
    "k8s.schema": 8,
    # 7 the command that starts any of the mains
    "tandem.cli": 7,
    "tandem.development": 7,
    "bench.goodput_router": 7,
    # 6 mains: argv, env, process, signals
    "tandem": 6,
    "prefill.main": 6,
    "decode.main": 6,
    "colocated.main": 6,
    "router": 6,
    "bench": 6,
    "k8s": 6,
    # 5 drivers: two worlds, siblings
    "tandem.runtime.resources": 5,
    "tandem.runtime.transports": 5,
    "tandem.runtime.carrying": 5,
    "tandem.runtime.endpoints": 5,
    "tandem.runtime.drive": 5,
    "tandem.runtime.drills": 5,
    "tandem.runtime.rendezvous": 5,
    "tandem.runtime.incarnation": 5,
    "tandem.runtime.serving": 5,
    "tandem.runtime.stage": 5,
    "tandem.runtime.state": 5,
    "tandem.runtime.gauges": 5,
    "tandem.sim": 5,
    "tandem.local": 5,
    "tandem.flags": 5,
    "tandem.waterfall": 5,
    # 4 hands: sockets, threads, torch
    "tandem.engine": 4,
    "tandem.runtime": 4,
    "kvtransfer.transports": 4,
    "kvtransfer.peer_link": 4,
    "kvtransfer.answering": 4,
    "kvtransfer.calling": 4,
    "kvtransfer.posting": 4,
    "kvtransfer.checksums": 4,
    "kvtransfer.edges": 4,
    "kvtransfer.fences": 4,
    "kvtransfer.openings": 4,
    "kvtransfer.trials": 4,
    "consensus.link": 4,
    "consensus.store_link": 4,
    "router.upstream": 4,
    "router.dispatch": 4,
    "router.requests": 4,
    "router.exchange": 4,
    "router.reader": 4,
    # 3 ports, and what all hands use
    "kvtransfer.gate": 3,
    "tandem.ports": 3,
    "tandem.assembly": 3,
    "tandem.runtime.links": 3,
    "tandem.runtime.metrics_table": 3,
    "tandem.runtime.inbox": 3,
    # 2 machine: pure
    "tandem.core.scheduler": 2,
    "tandem.core.rank": 2,
    "tandem.core.head": 2,
    "prefill": 2,
    "decode": 2,
    "colocated": 2,
    "router.placement": 2,
    "router.index": 2,
    "router.cost": 2,
    "router.breakers": 2,
    "router.budget": 2,
    "router.underway": 2,
    "router.policies": 2,
    "router.attempt": 2,
    "router.membership": 2,
    "router.quarantine": 2,
    "router.queue": 2,
    "router.limits": 2,
    "router.tenants": 2,
    "router.traffic": 2,
    "router.recalled": 2,
    "router.stream": 2,
    "router.logprobs": 2,
    "router.stops": 2,
    "router.errors": 2,
    "router.ports": 2,
    # 1 rules: pure
    "consensus": 1,
    "kvtransfer": 1,
    "tandem.core.role": 1,
    "tandem.core.slots": 1,
    "tandem.core.pages": 1,
    "tandem.core.batching": 1,
    "tandem.core.budget": 1,
    "tandem.core.deadlines": 1,
    "tandem.core.quarantine": 1,
    "tandem.core.victims": 1,
    "tandem.core.turns": 1,
    "tandem.core.prefixes": 1,
    "tandem.core.journal": 1,
    "tandem.core.queue": 1,
    "tandem.core.recent": 1,
    "tandem.core.recorder": 1,
    "tandem.core.untold": 1,
    "tandem.core.portions": 1,
    "tandem.core.digest": 1,
    "tandem.core.figures": 1,
    "tandem.core.chunking": 1,
    "tandem.core.tuning": 1,
    # 0 words: frozen nouns
    "tandem.core": 0,
}
"""The floor of a module is that of its longest prefix here."""

CORE = 2
"""Floors up to this one are pure."""
MAINS = 6
PURE = [
    "dataclasses",
    "enum",
    "typing",
    "collections",
    "hashlib",
    "hmac",
    "msgspec",
    "numpy",
    "struct",
    "bisect",
    "heapq",
    "itertools",
]
"""All that the core may import besides itself."""
TORCH_IS_FOR = ("tandem.engine", "bench.engine_peers")
"""Prefixes. The second is transformers, measured beside us in a process of its own."""
NEVER_MODULES = ("pickle", "marshal", "dill", "cloudpickle", "shelve")
NEVER_CALLS = ("eval", "exec")
IMPURE_CALLS = ("hash", "id", "open", "print", "input")
MAY_CATCH = {
    "tandem.engine.bpe.directory_codec": "tokenizers raises plain Exception",
    "tandem.runtime.stage._live": "the top of an epoch: the process outlives a bug, and the ring forms again",
    "tandem.runtime.stage._serve": "the top of the process: it ends by os._exit, which would swallow the traceback",
    "tandem.engine.cpu.engine.tell": "native code cannot pass an exception on: it is raised once the call is over",
    "tandem.runtime.compute._work": "the top of a thread: the tick loop must hear of whatever ended it",
    "tandem.runtime.compiling._run": "the top of a thread: the tick loop must hear of whatever ended it",
    "consensus.link._guard": "the top of a thread: the tick loop must hear of whatever ended it",
    "router.upstream._look": "the top of a callback: the router must hear of what the loop only logs",
}
"""Functions below the mains that catch everything, and why. Another top of its kind may be added, nothing else."""
FILE_LINES = 400
FUNCTION_LINES = 60
RATCHET: dict[str, int] = {}
"""Files and functions that are longer, with their lines. It may only shrink: nothing is added, what fits is removed."""


@dataclass(frozen=True)
class Module:
    """One source file of a package."""

    name: str
    source: str

    @property
    def tree(self) -> ast.Module:
        return parsed(self.source)

    @property
    def floor(self) -> int:
        return floor_of(self.name)


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def floor_of(name: str) -> int:
    """Raises LookupError for a module that no floor has been given: put its prefix into FLOORS."""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    floor = next((FLOORS[prefix] for prefix in prefixes if prefix in FLOORS), None)
    if floor is None:
        raise LookupError(f"{name} has no floor: add it to FLOORS in tests/test_tidy.py")
    return floor


@cache
def read_modules() -> list[Module]:
    """Every module that ships. Packages that only have an empty `__init__` file say nothing."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            source = path.read_text()
            if source.strip():
                found.append(Module(".".join(part for part in parts if part != "__init__"), source))
    return found


def ours(name: str) -> bool:
    return name.split(".")[0] in PACKAGES


def package_of(name: str) -> str:
    """`tandem` is only a shell: its folders count as packages."""
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] == "tandem" and len(parts) > 2 else 1])


def imports_of(module: Module) -> Iterator[str]:
    """Full names of everything imported, also inside functions; `from a import b` is `a`, or `a.b` if that is ours."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name}: relative imports hide where a name comes from"
            base = node.module or ""
            as_modules = [f"{base}.{alias.name}" for alias in node.names]
            submodules = [name for name in as_modules if ours(name) and is_module(name)]
            yield from submodules or [base]


@cache
def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


# the rules: each yields what is wrong with one module


def imports_go_down(module: Module) -> Iterator[str]:
    for name in imports_of(module):
        if not ours(name):
            continue
        below = floor_of(name)
        if below > module.floor:
            yield f"imports {name}: floor {module.floor} may not look up to floor {below}"
        if below == module.floor and package_of(name) != package_of(module.name):
            yield f"imports {name}: packages of the same floor do not know each other"


def core_is_pure(module: Module) -> Iterator[str]:
    if module.floor > CORE:
        return
    for name in imports_of(module):
        if not ours(name) and name.split(".")[0] not in PURE:
            yield f"imports {name}: the core imports only itself and {', '.join(PURE)}"
    for name, line in called_names(module):
        if name in IMPURE_CALLS:
            yield f"calls {name}() in line {line}: it differs between ranks, or does something"


def torch_stays_in_the_engine(module: Module) -> Iterator[str]:
    if not module.name.startswith(TORCH_IS_FOR):
        yield from (f"imports {name}" for name in imports_of(module) if name.split(".")[0] == "torch")


def nothing_runs_what_it_reads(module: Module) -> Iterator[str]:
    yield from (f"imports {name}" for name in imports_of(module) if name.split(".")[0] in NEVER_MODULES)
    yield from (f"calls {name}() in line {line}" for name, line in called_names(module) if name in NEVER_CALLS)


def called_names(module: Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node.lineno


def bugs_are_not_caught(module: Module) -> Iterator[str]:
    if module.floor < MAINS:
        yield from (
            f"catches everything in {name}: only a main may" for name in catchers(module) if name not in MAY_CATCH
        )


def catchers(module: Module) -> Iterator[str]:
    """Functions, or the module itself, that catch everything."""
    functions = [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = [(f"{module.name}.{function.name}", handler) for function in functions for handler in handlers(function)]
    seen = {handler.lineno for _, handler in inside}
    outside = [(module.name, handler) for handler in handlers(module.tree) if handler.lineno not in seen]
    yield from (name for name, handler in (*inside, *outside) if catches_all(handler))


def handlers(scope: ast.AST) -> list[ast.ExceptHandler]:
    return [node for node in ast.walk(scope) if isinstance(node, ast.ExceptHandler)]


def catches_all(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = [each.id for each in caught if isinstance(each, ast.Name)]
    return handler.type is None or "Exception" in names or "BaseException" in names


def illegal_states_raise(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and not node.test.value:
            yield f"assert False in line {node.lineno}: raise, or assert_never"


def sets_are_for_membership(module: Module) -> Iterator[str]:
    """As far as syntax shows: set expressions, and names bound to one in the same function."""
    if module.floor > CORE:
        return
    functions = [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)]
    for scope in [*functions, module.tree]:
        sets = names_of_sets(scope)
        for node in ast.walk(scope):
            for iterated in iterated_by(node):
                if is_set(iterated) or (isinstance(iterated, ast.Name) and iterated.id in sets):
                    yield f"iterates over a set in line {iterated.lineno}: its order differs between ranks"


def names_of_sets(scope: ast.AST) -> set[str]:
    bound = (node for node in ast.walk(scope) if isinstance(node, ast.Assign) and is_set(node.value))
    return {target.id for node in bound for target in node.targets if isinstance(target, ast.Name)}


def is_set(node: ast.AST) -> bool:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return called or isinstance(node, ast.Set | ast.SetComp)


def iterated_by(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.For(iter=iterated) | ast.comprehension(iter=iterated) | ast.Starred(value=iterated):
            yield iterated
        case ast.Call(func=ast.Name(id="list" | "tuple" | "iter" | "enumerate"), args=[iterated, *_]):
            yield iterated


def files_and_functions_are_short(module: Module) -> Iterator[str]:
    yield from (f"{name} has {lines} lines" for name, lines in lengths_of(module) if name not in RATCHET)


def lengths_of(module: Module) -> Iterator[tuple[str, int]]:
    """What is too long, by name: `package.module` or `package.module.function`."""
    lines = module.source.count("\n")
    if lines > FILE_LINES:
        yield module.name, lines
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{module.name}.{node.name}", lines


def modules_say_what_they_are(module: Module) -> Iterator[str]:
    first = (ast.get_docstring(module.tree) or "").split("\n\n")[0]
    if not first.endswith(".") or "\n" in first.split(". ")[0]:
        yield f"starts with {first!r}: say in one sentence, on one line, what the module is"


Rule = Callable[[Module], Iterator[str]]

RULES: tuple[Rule, ...] = (
    imports_go_down,
    core_is_pure,
    torch_stays_in_the_engine,
    nothing_runs_what_it_reads,
    bugs_are_not_caught,
    illegal_states_raise,
    sets_are_for_membership,
    files_and_functions_are_short,
    modules_say_what_they_are,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule):
    broken = [f"{module.name} {what}" for module in read_modules() for what in rule(module)]
    assert not broken, "\n".join(["", *broken])


def test_the_ratchet_only_shrinks():
    lengths = dict(entry for module in read_modules() for entry in lengths_of(module))
    stale = {name: lines for name, lines in RATCHET.items() if lengths.get(name, 0) != lines}
    assert not stale, f"now {[(name, lengths.get(name)) for name in stale]}: write the new length, or remove the entry"


def test_every_exception_to_the_rule_on_catching_is_needed():
    needed = {name for module in read_modules() if module.floor < MAINS for name in catchers(module)}
    assert needed == MAY_CATCH.keys()


def test_test_folders_do_not_shadow_packages():
    folders = [path for path in (ROOT / "tests").rglob("*") if path.is_dir()]
    assert not [path for path in folders if path.name in PACKAGES]
    assert not list((ROOT / "tests").rglob("__init__.py"))


# every rule can fail


BAD: list[tuple[Rule, str, str]] = [
    (imports_go_down, "tandem.core.ids", "import tandem.core.scheduler"),
    (imports_go_down, "tandem.core.scheduler", "from tandem.core import rank\nimport tandem.sim.world"),
    (imports_go_down, "prefill.role", "def late():\n    from decode.role import DecodeRole"),
    (imports_go_down, "tandem.engine.fake", "from kvtransfer.peer_link import PeerLink"),
    (core_is_pure, "consensus.facts", "import time"),
    (core_is_pure, "decode.role", "from asyncio import sleep"),
    (core_is_pure, "prefill.role", "def order(rooms):\n    return hash(rooms)"),
    (torch_stays_in_the_engine, "tandem.runtime.drive", "import torch.nn"),
    (nothing_runs_what_it_reads, "router.app", "from pickle import loads"),
    (nothing_runs_what_it_reads, "bench.run", "eval('1')"),
    (bugs_are_not_caught, "tandem.engine.fake", "try:\n    run()\nexcept Exception:\n    pass"),
    (bugs_are_not_caught, "tandem.runtime.links", "try:\n    run()\nexcept (OSError, BaseException):\n    pass"),
    (bugs_are_not_caught, "decode.role", "try:\n    run()\nexcept:\n    pass"),
    (illegal_states_raise, "router.app", "assert False, 'cannot happen'"),
    (sets_are_for_membership, "decode.role", "for room in {1, 2}:\n    print(room)"),
    (sets_are_for_membership, "decode.role", "def plan(rooms):\n    late = set(rooms)\n    return [r for r in late]"),
    (sets_are_for_membership, "decode.role", "rooms = list({room for room in ()})"),
    (files_and_functions_are_short, "decode.role", "x = 1\n" * (FILE_LINES + 1)),
    (files_and_functions_are_short, "decode.role", "def long():\n" + "    x = 1\n" * FUNCTION_LINES),
    (modules_say_what_they_are, "decode.role", "x = 1"),
    (modules_say_what_they_are, "decode.role", '"""decode role"""'),
    (modules_say_what_they_are, "decode.role", '"""A sentence that goes\non and on."""'),
]


@pytest.mark.parametrize(("rule", "name", "source"), BAD)
def test_a_rule_fails_for(rule: Rule, name: str, source: str):
    assert list(rule(Module(name, source)))


GOOD: list[tuple[Rule, str, str]] = [
    (imports_go_down, "tandem.sim.world", "import tandem.core.rank\nfrom tandem.sim import clock"),
    (core_is_pure, "decode.role", "import collections.abc\nfrom tandem.core.ids import Room"),
    (sets_are_for_membership, "decode.role", "late = {1, 2}\nfound = [room for room in (1, 2) if room in late]"),
    (modules_say_what_they_are, "decode.role", '"""One sentence.\n\nAnd then more\nof them."""'),
]


@pytest.mark.parametrize(("rule", "name", "source"), GOOD)
def test_a_rule_holds_for(rule: Rule, name: str, source: str):
    assert not list(rule(Module(name, source)))


def test_every_rule_is_shown_to_fail():
    assert {rule for rule, _, _ in BAD} == set(RULES)


def test_a_module_without_a_floor_is_named():
    with pytest.raises(LookupError, match=r"nowhere\.at_all"):
        floor_of("nowhere.at_all")


def test_every_floor_names_a_module():
    names = [f"{module.name}." for module in read_modules()]
    unused = [prefix for prefix in FLOORS if not any(name.startswith(f"{prefix}.") for name in names)]
    assert not unused


def test_lines_are_in_order_of_floors():
    assert all(above >= below for above, below in pairwise(FLOORS.values()))
