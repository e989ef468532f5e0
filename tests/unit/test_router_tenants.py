"""Keys files: what they may say, that nothing of them is ever told, and whose key is whose."""

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.auth import Doors, doors_of, is_loopback
from router.keystore import KeyStore
from router.limits import Quota
from router.tenants import ANONYMOUS, KEYS_MAX, BadKeys, Tenant, one_key, read_keys, salt_of
from tandem.core.config import Frontend, RouterOptions
from tandem.core.errors import ConfigError

KEY = "a key of somebody"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()
ALICE = {"name": "alice", "key_sha256": DIGEST}


def options(**fields) -> RouterOptions:
    return RouterOptions(cluster="", model="m", served_model_name="m", registry_url="", **fields)


@pytest.mark.parametrize(
    "content",
    [json.dumps([ALICE]), json.dumps(ALICE), f"\n{json.dumps(ALICE)}\n\n", json.dumps([ALICE], indent=2)],
    ids=["a list", "a line", "lines", "over several lines"],
)
def test_a_file_is_a_list_or_has_an_entry_on_each_line(content: str):
    assert read_keys(content.encode()).find(KEY.encode()) == Tenant("alice")


def test_an_entry_has_limits_and_may_be_an_operators():
    limits = {"requests_per_minute": 1, "concurrent": 2, "tokens_per_minute": 3}
    found = read_keys(json.dumps({**ALICE, **limits, "admin": True}).encode()).find(KEY.encode())
    assert found == Tenant("alice", Quota(1, 2, 3), admin=True)


def other(name: str, number: int, **more) -> dict:
    return {"name": name, "key_sha256": f"{number:064x}", **more}


BAD = {
    "no JSON": ("{", "line 1 "),
    "no key": ("", "no key"),
    "an empty list": ("[]", "no key"),
    "a key itself": (json.dumps({"name": "alice", "key": KEY}), "line 1 "),
    "an unknown limit": (json.dumps({**ALICE, "requests": 3}), "requests"),
    "a limit of nothing": (json.dumps({**ALICE, "concurrent": 0}), "concurrent"),
    "half a hash": (json.dumps({**ALICE, "key_sha256": DIGEST[:32]}), "key_sha256"),
    "a name of another kind": (json.dumps({**ALICE, "name": "a b"}), "name"),
    "no name": (json.dumps({**ALICE, "name": ""}), "name"),
    "the second line": (f"{json.dumps(ALICE)}\nnonsense", "line 2 "),
    "a key twice": (json.dumps([ALICE, {**ALICE, "name": "bob"}]), "bob"),
    "one tenant with two limits": (json.dumps([ALICE, other("alice", 1, concurrent=1)]), "different limits"),
    "too many": (json.dumps([other("a", number) for number in range(KEYS_MAX + 1)]), str(KEYS_MAX)),
    "no UTF-8": (b'{"name": "\xff"}', "line 1 "),
    "far too long": (b" " * (1 << 21), "larger"),
}


@pytest.mark.parametrize(("content", "told"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_named_without_a_key_or_its_hash(content: str | bytes, told: str):
    with pytest.raises(BadKeys, match=told) as refused:
        read_keys(content if isinstance(content, bytes) else content.encode())
    assert KEY not in str(refused.value)
    assert DIGEST[:16] not in str(refused.value)


@given(st.binary(max_size=300))
def test_whatever_is_in_the_file_it_is_read_or_refused(content: bytes):
    try:
        read_keys(content)
    except BadKeys:
        return


def test_several_keys_may_be_one_tenants():
    keys = read_keys(json.dumps([ALICE, other("alice", 1)]).encode())
    assert keys.names == {"alice"}
    assert len(keys) == 2


def test_every_known_key_is_compared_to_its_end_wherever_the_right_one_stands(monkeypatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    keys = read_keys(json.dumps([ALICE, *(other("bob", number) for number in range(9))]).encode())
    for key in (KEY.encode(), b"wrong"):
        compared.clear()
        keys.find(key)
        assert len(compared) == 10


@given(
    st.text(max_size=20), st.text(max_size=20), st.sampled_from(["a", "b", "a.b"]), st.sampled_from(["a", "b", "a.b"])
)
def test_salts_are_equal_only_for_the_same_tenant_and_the_same_salt(one: str, two: str, first: str, second: str):
    equal = salt_of(b"secret", Tenant(first), one) == salt_of(b"secret", Tenant(second), two)
    assert equal == ((one, first) == (two, second))


def test_a_salt_depends_on_the_clusters_secret_and_fits_a_request():
    assert salt_of(b"one", Tenant("a"), "") != salt_of(b"two", Tenant("a"), "")
    assert len(salt_of(b"one", Tenant("a"), "x" * 256)) == 64
    assert salt_of(b"one", ANONYMOUS, "its own") == "its own"


def test_without_keys_everybody_may_come_in_and_operators_from_this_host():
    doors = doors_of(options(), b"")
    assert doors.clients() == doors.operators() == ()


def test_one_key_is_that_of_all_clients_and_not_of_the_admin_port():
    doors = doors_of(options(api_key=KEY), b"")
    (keys,) = doors.clients()
    assert keys.find(KEY.encode()) == Tenant("default")
    assert doors.operators() == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_an_admin_port_that_others_can_reach_needs_a_key(host: str, tmp_path):
    with pytest.raises(ConfigError, match="TANDEM_ADMIN_API_KEY"):
        doors_of(options(admin_host=host, api_key=KEY), b"")
    assert doors_of(options(admin_host=host, admin_api_key=KEY), b"").operators()
    file = tmp_path / "keys"
    file.write_text(json.dumps({**ALICE, "admin": True}))
    assert doors_of(options(admin_host=host, frontend=Frontend(api_keys_file=str(file))), b"").operators()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_only_this_host_reaches_its_loopback(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize("content", [None, "nonsense"])
def test_a_router_does_not_start_with_a_file_that_it_cannot_use(tmp_path, content: str | None):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="--api-keys-file is "):
        KeyStore(str(file))


def test_a_key_of_the_file_and_a_given_one_are_one_tenant_only_with_equal_limits(tmp_path):
    """Else each request of one would give the other its whole minute anew."""
    file = tmp_path / "keys"
    file.write_text(json.dumps({**ALICE, "requests_per_minute": 1}))
    with pytest.raises(ConfigError, match="different limits"):
        KeyStore(str(file), (one_key("given", "alice"),))


def test_a_file_is_looked_at_once_a_second(tmp_path):
    file = tmp_path / "keys"
    file.write_text(json.dumps(ALICE))
    store = KeyStore(str(file), (one_key("given", "default"),))
    assert len(store.keys) == 2
    assert not store.look(0.0)
    file.write_text(json.dumps([ALICE, other("bob", 1)]))
    assert not store.look(0.5)
    assert store.look(1.0)
    assert len(store.keys) == 3
    assert Doors(store).names == {"alice", "bob", "default"}
