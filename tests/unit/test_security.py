"""What must not be in the code at all, and that whoever decodes what others send raises its own error and no other."""

import ast
import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ApiError
from router.held import held_of
from router.orders import knobs_of
from router.ranks import Heard
from router.schema import ChatBody, CompletionBody, decode
from router.tenants import BadKeys, read_keys
from tandem.core import messages
from tandem.core.config import Limits
from tandem.runtime.links import Decoder, Malformed

ROOT = Path(__file__).parents[2]
PACKAGES = ("tandem", "consensus", "prefill", "decode", "colocated", "kvtransfer", "router", "bench", "k8s")

# what runs what it reads


def dotted(node: ast.expr) -> str:
    """`torch.load` of the syntax tree of that; empty for what is no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


FORBIDDEN = (
    *("torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "numpy.load", "np.load"),
    *("yaml.load", "joblib.load", "os.system", "os.popen", "subprocess.getoutput", "code.interact"),
    *("dist.broadcast_object_list", "dist.all_gather_object", "dist.send_object_list", "dist.recv_object_list"),
)
SAFE_LOADS = {"weights_only": True, "allow_pickle": False}


def unsafe_calls(source: str) -> list[str]:
    """Calls that unpickle, or give a shell what they are given."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        given_values = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        safe = any(given_values.get(name) is value for name, value in SAFE_LOADS.items())
        if dotted(node.func) in FORBIDDEN and not safe:
            found.append(dotted(node.func))
        if given_values.get("shell") is True:
            found.append(f"{dotted(node.func)}(shell=True)")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_loaded_that_could_run(package: str):
    found = {
        str(path.relative_to(ROOT)): calls
        for path in (ROOT / package).rglob("*.py")
        if (calls := unsafe_calls(path.read_text()))
    }
    assert not found


@pytest.mark.parametrize(
    "source", ["torch.load(path)", "np.load(path, allow_pickle=True)", "subprocess.run(line, shell=True)"]
)
def test_what_could_run_is_found(source: str):
    assert unsafe_calls(source)
    assert not unsafe_calls("torch.load(path, weights_only=True)")


def test_no_router_fetches_what_a_client_names():
    """The one module that asks over HTTP asks ranks, at the addresses that the signed registry has."""
    clients = ("urllib.request", "http.client", "httpx", "aiohttp", "requests")
    asking = {
        path.name
        for path in (ROOT / "router").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if name in clients
    }
    assert asking <= {"ranks.py"}
    text = (ROOT / "router" / "ranks.py").read_text()
    assert "router.asked" not in text
    assert "router.schema" not in text


# decoders

UNIONS: dict[str, Any] = {
    name: getattr(messages, name)
    for name in ("ToGroup", "ToRouter", "ToPrefill", "ToDecode", "ToLeader", "FromLeader", "OnRing")
}
TAGS = [name for name, kind in vars(messages).items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=20,
)
NEARLY = st.tuples(
    st.sampled_from([*TAGS, "Submit", "Control", "Knobs", "FirstToken"]), st.lists(PLAIN, max_size=8)
).map(lambda pair: msgspec.msgpack.encode([pair[0], *pair[1]]))


@pytest.mark.parametrize("kind", UNIONS.values(), ids=UNIONS)
@given(content=st.binary(max_size=200) | PLAIN.map(msgspec.msgpack.encode) | NEARLY)
def test_what_is_no_message_is_malformed_and_nothing_else(kind: Any, content: bytes):
    with contextlib.suppress(Malformed):
        Decoder(kind)(content)


def test_a_message_that_nests_without_end_is_malformed():
    for deep in (b"\x91" * 100_000, b"\x92\xa6Submit" + b"\x91" * 100_000):
        with pytest.raises(Malformed):
            Decoder(messages.ToGroup)(deep)


JSON_BYTES = st.binary(max_size=200) | PLAIN.map(lambda value: json.dumps(value, default=str).encode())


@given(JSON_BYTES)
def test_a_body_that_cannot_be_read_is_a_400(content: bytes):
    readers = (partial(decode, kind=ChatBody), partial(decode, kind=CompletionBody), partial(knobs_of, limits=Limits()))
    for read in readers:
        with contextlib.suppress(ApiError):
            read(content)


@given(JSON_BYTES)
def test_a_file_of_keys_that_cannot_be_read_is_refused(content: bytes):
    with contextlib.suppress(BadKeys):
        read_keys(content)


@given(JSON_BYTES)
def test_what_a_rank_says_is_understood_or_named(content: bytes):
    with contextlib.suppress(ValueError):
        held_of(Heard(200, content, 0, 0))
