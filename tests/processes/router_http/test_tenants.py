"""Keys, tenants and their limits, over HTTP; the admin port; what an attacker may try at either."""

import hashlib
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from waiting import DEADLINE_S

from router.auth import Doors
from router.keystore import KeyStore
from router.tenants import Keys, one_key
from tandem import cli

CHAT = "/v1/chat/completions"
ALICE, BOB, ADMIN = "key-of-alice-0123456789", "key-of-bob-0123456789", "key-of-an-operator-0123456789"


def entry(name: str, key: str, **limits: Any) -> dict[str, Any]:
    return {"name": name, "key_sha256": hashlib.sha256(key.encode()).hexdigest(), **limits}


def write(path: Path, *entries: dict[str, Any]) -> None:
    write_text(path, "\n".join(map(json.dumps, entries)))


def write_text(path: Path, text: str) -> None:
    """At once, as a careful operator does."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def doors(path: Path, *entries: dict[str, Any], admin: bool = False) -> Doors:
    write(path, *entries)
    return Doors(KeyStore(str(path)), Keys([one_key(ADMIN, "admin", admin=True)]), b"the cluster's secret", admin=admin)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def two(start, keys_file: Path):
    """A router that knows two tenants."""
    return start(doors=doors(keys_file, entry("alice", ALICE), entry("bob", BOB)))


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


def post(serving, key: str | None, **fields: Any):
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return serving.post(CHAT, body(**fields), **headers)


def check(answer, status: int, code: str) -> dict[str, str]:
    got, headers, payload = answer
    error = json.loads(payload)["error"]
    assert (got, error["code"], headers["x-tandem-error-code"]) == (status, code, code), error
    assert set(error) == {"message", "type", "code", "param"}
    assert "x-request-id" in headers
    return headers


def test_a_known_key_is_let_in_by_the_official_client(two):
    client = openai.OpenAI(base_url=f"{two.url}/v1", api_key=ALICE, max_retries=0)
    answer = client.chat.completions.create(**body())
    assert answer.choices[0].message.content == "hello world"


def test_the_official_client_is_told_that_its_key_is_wrong(two):
    client = openai.OpenAI(base_url=f"{two.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as told:
        client.models.list()
    assert told.value.code == "invalid_api_key"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/openapi.json", "/nowhere"])
def test_without_a_key_nothing_is_told(two, path: str):
    status, answer = two.get(path)
    assert (status, answer["error"]["code"]) == (401, "missing_api_key")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/version"])
def test_who_looks_after_the_router_needs_no_key(two, path: str):
    assert two.get(path)[0] == 200


NONE, WRONG = "missing_api_key", "invalid_api_key"
REFUSED = {
    "none": ({}, NONE),
    "empty": ({"authorization": "Bearer "}, NONE),
    "another scheme": ({"authorization": f"Basic {ALICE}"}, NONE),
    "no scheme": ({"authorization": ALICE}, NONE),
    "almost right": ({"authorization": f"Bearer {ALICE[:-1]}"}, WRONG),
    "its hash": ({"authorization": f"Bearer {hashlib.sha256(ALICE.encode()).hexdigest()}"}, WRONG),
    "very long": ({"authorization": f"Bearer {'k' * 4000}"}, WRONG),
    "no ASCII": ({"authorization": "Bearer \xff\xfe"}, WRONG),
    "in another header": ({"x-api-key": ALICE}, NONE),
}


@pytest.mark.parametrize(("headers", "code"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_key_is_refused_before_the_body_is_looked_at(two, headers: dict[str, str], code: str):
    told = check(two.post(CHAT, b"{ no JSON", **headers), 401, code)
    assert told["www-authenticate"] == "bearer"
    assert told["x-should-retry"] == "false"


def test_two_keys_at_once_are_none(two):
    key = f"authorization: Bearer {ALICE}"
    assert two.raw(f"GET /v1/models HTTP/1.1\nhost: x\nconnection: close\n{key}\n\n").startswith(b"HTTP/1.1 200")
    assert two.raw(f"GET /v1/models HTTP/1.1\nhost: x\nconnection: close\n{key}\n{key}\n\n").startswith(b"HTTP/1.1 401")


def salts(serving, kinds, key: str | None, **fields: Any) -> set[str]:
    serving.double.play()
    assert post(serving, key, **fields)[0] == 200
    return {submit.work.salt for submit in serving.double.wait_for(kinds.submit, count=2)}


def test_tenants_share_no_prefix_whatever_they_say(two, kinds):
    seen = [
        salts(two, kinds, key, **fields)
        for key in (ALICE, BOB)
        for fields in ({}, {"cache_salt": "same"}, {"cache_salt": "alice"}, {"user": "alice"})
    ]
    assert all(len(salt) == 1 for salt in seen)
    alice, bob = (set().union(*part) for part in (seen[:4], seen[4:]))
    assert not alice & bob
    assert len(alice) == len(bob) == 3, "a client's own salt still tells its prompts apart"


def test_a_tenant_cannot_compute_the_salt_of_another(two, kinds):
    """What is sent to the groups for one tenant is no use to another: it is hashed again."""
    (salt,) = salts(two, kinds, ALICE)
    assert salts(two, kinds, BOB, cache_salt=salt) != {salt}


def test_without_keys_the_salt_is_the_clients(serving, kinds):
    assert salts(serving, kinds, None, cache_salt="mine") == {"mine"}
    assert salts(serving, kinds, None) == {""}


def test_a_tenant_has_so_many_requests_in_a_minute_and_others_have_theirs(start, keys_file):
    serving = start(doors=doors(keys_file, entry("alice", ALICE, requests_per_minute=2), entry("bob", BOB)))
    assert [post(serving, ALICE)[0] for _ in range(2)] == [200, 200]
    headers = check(post(serving, ALICE), 429, "tenant_limit")
    assert 1 <= int(headers["retry-after"]) <= 30
    assert post(serving, BOB)[0] == 200


def test_a_tenant_has_so_many_requests_at_once(start, kinds, keys_file):
    serving = start(doors=doors(keys_file, entry("alice", ALICE, concurrent=1)))
    serving.double.play(hold_at=0)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, serving, ALICE)
        serving.double.wait_for(kinds.submit, count=2)
        check(post(serving, ALICE), 429, "tenant_limit")
        serving.double.go()
        assert first.result()[0] == 200
    assert post(serving, ALICE)[0] == 200


def test_a_tenant_has_so_many_tokens_in_a_minute(start, keys_file):
    serving = start(doors=doors(keys_file, entry("alice", ALICE, tokens_per_minute=20)))
    assert post(serving, ALICE)[0] == 200
    headers = check(post(serving, ALICE), 429, "tenant_limit")
    assert int(headers["retry-after"]) >= 1


def test_a_new_key_works_a_second_later_and_an_old_one_no_more(start, keys_file, until):
    serving = start(doors=doors(keys_file, entry("alice", ALICE)))
    assert post(serving, BOB)[0] == 401
    write(keys_file, entry("bob", BOB))
    until(lambda: post(serving, BOB)[0] == 200)
    assert post(serving, ALICE)[0] == 401


def test_a_file_that_breaks_changes_nothing_and_is_told_without_a_key(start, keys_file, until, caplog):
    serving = start(doors=doors(keys_file, entry("alice", ALICE)))
    write_text(keys_file, f'{{"name": "alice", "key": "{BOB}"}}')
    until(lambda: "the keys of before stay" in caplog.text)
    assert post(serving, ALICE)[0] == 200
    keys_file.unlink()
    until(lambda: caplog.text.count("the keys of before stay") == 2)
    assert post(serving, ALICE)[0] == 200
    assert BOB not in caplog.text
    write(keys_file, entry("bob", BOB))
    until(lambda: post(serving, BOB)[0] == 200)


ADMIN_PATHS = ("/workers", "/status", "/requests", "/transfers", "/held")


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_the_port_for_clients_has_nothing_of_the_admin_port(serving, path: str):
    status, answer = serving.get(path)
    assert (status, answer["error"]["code"]) == (404, "not_found")


def admin_get(serving, path: str, key: str) -> tuple[int, str]:
    line = http.client.HTTPConnection(urlsplit(serving.admin_url).netloc, timeout=DEADLINE_S)
    line.request("GET", path, headers={"authorization": f"Bearer {key}"})
    answer = line.getresponse()
    payload = answer.read()
    line.close()
    return answer.status, json.loads(payload).get("error", {}).get("code", "")


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_a_closed_admin_port_asks_for_an_operators_key(start, keys_file, path: str):
    """Waiting for the groups needs the admin port, so nothing is registered here."""
    made = doors(keys_file, entry("alice", ALICE), entry("carol", BOB, admin=True), admin=True)
    serving = start(registered=False, doors=made)
    assert serving.get(path, admin=True)[1]["error"]["code"] == "missing_api_key"
    assert admin_get(serving, path, "wrong") == (401, "invalid_api_key")
    assert admin_get(serving, path, ALICE) == (403, "not_an_admin_key")
    assert admin_get(serving, path, ADMIN) == admin_get(serving, path, BOB) == (200, "")
    assert serving.get("/livez", admin=True)[0] == 200


def test_commands_show_the_operators_key(start, keys_file, capsys, monkeypatch):
    serving = start(registered=False, doors=doors(keys_file, entry("alice", ALICE), admin=True))
    assert cli.run(["kv", "ls", "--admin-url", serving.admin_url]) == 2
    assert "an API key is needed" in capsys.readouterr().err
    monkeypatch.setenv("TANDEM_ADMIN_API_KEY", ADMIN)
    assert cli.run(["kv", "ls", "--admin-url", serving.admin_url]) == 0
