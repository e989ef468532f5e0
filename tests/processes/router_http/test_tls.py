"""Clients over TLS: what is served, what is refused, and that a connection's limits hold there as well."""

import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest
from waiting import DEADLINE_S

from router import connection
from router.given import check_frontend
from router.tls import tls_of
from tandem.core.config import Frontend
from tandem.core.errors import ConfigError

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def certificate(folder: Path, *more: str) -> tuple[Path, Path]:
    """One that signs itself, for 127.0.0.1."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1"]
    command = ["openssl", *kind, "-keyout", str(key), "-out", str(cert), *names, *(more or ("-nodes",))]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secure(start, files: tuple[Path, Path]):
    cert, key = files
    return start(frontend=Frontend(tls_cert_path=str(cert), tls_key_path=str(key)))


@pytest.fixture
def trusting(files: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(files[0]))


def connect(serving, context: ssl.SSLContext) -> ssl.SSLSocket:
    host = serving.address[0]
    return context.wrap_socket(socket.create_connection(serving.address, timeout=DEADLINE_S), server_hostname=host)


def head(payload: bytes) -> bytes:
    return f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n".encode()


def read_all(line: ssl.SSLSocket) -> bytes:
    data = b""
    try:
        while more := line.recv(65536):
            data += more
    except (ConnectionResetError, ssl.SSLEOFError):
        pass
    return data


def test_the_official_client_streams_over_tls(secure, files, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
    assert secure.url.startswith("https://127.0.0.1:")
    client = openai.OpenAI(base_url=f"{secure.url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)
    with client.chat.completions.create(**BODY, stream=True) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "hello world"


def test_the_admin_port_of_this_host_stays_as_it_is(secure):
    assert secure.admin_url.startswith("http://127.0.0.1:")
    assert secure.get("/status", admin=True)[0] == 200


def test_who_speaks_no_tls_is_not_answered(secure, kinds):
    with socket.create_connection(secure.address, timeout=DEADLINE_S) as line:
        line.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" not in kinds.read_all(line)


def test_an_old_version_of_tls_is_refused(secure, files):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(files[0])
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        connect(secure, old).close()


def test_a_client_that_leaves_is_noticed(secure, trusting, kinds):
    secure.double.play(hold_at=3)
    payload = b'{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    )
    with connect(secure, trusting) as line:
        line.sendall(head.encode() + payload)
        secure.double.wait_for(kinds.submit, count=2)
    secure.double.wait_for(kinds.cancel, count=2)
    secure.wait_at_rest()


@pytest.mark.parametrize(
    "said", [b"GET /" + b"x" * 20_000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 4000, b"nonsense\r\n\r\n"]
)
def test_what_is_no_request_is_refused_and_the_refusal_can_be_read(secure, trusting, said: bytes):
    with connect(secure, trusting) as line:
        line.sendall(said)
        answer = read_all(line)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_http" in answer


def test_a_head_that_does_not_come_closes_the_connection(secure, trusting, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.3)
    with connect(secure, trusting) as line:
        line.sendall(b"GET / HTTP/1.1\r\nx")
        assert read_all(line) == b""


def test_a_large_body_is_refused(secure, trusting):
    with connect(secure, trusting) as line:
        line.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 900000000\r\n\r\n".encode())
        assert b"request_too_large" in read_all(line)


def test_a_reader_that_stops_reading_is_cut_off(start, files, trusting, kinds):
    """What waits for it is bounded also where it is encrypted."""
    cert, key = files
    serving = start(frontend=Frontend(tls_cert_path=str(cert), tls_key_path=str(key)), stalled_write_s=0.3)
    serving.double.play(ids=[65] * 7000, hold_at=1)
    payload = b'{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(DEADLINE_S)
        plain.connect(serving.address)
        with trusting.wrap_socket(plain, server_hostname=serving.address[0]) as line:
            line.sendall(head(payload) + payload)
            serving.double.wait_for(kinds.submit, count=2)
            serving.double.script.ids = [65] * 8000
            serving.double.go()
            serving.wait_at_rest()
            assert b"[DONE]" not in read_all(line)


def test_a_certificate_that_is_none_is_named(start, tmp_path: Path):
    (tmp_path / "cert.pem").write_text("no certificate")
    chosen = Frontend(tls_cert_path=str(tmp_path / "cert.pem"), tls_key_path=str(tmp_path / "cert.pem"))
    with pytest.raises(ConfigError, match=r"--tls-cert-path .*cert\.pem"):
        tls_of(chosen)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(tmp_path: Path):
    cert, key = certificate(tmp_path, "-passout", "pass:secret")
    with pytest.raises(ConfigError, match="password"):
        tls_of(Frontend(tls_cert_path=str(cert), tls_key_path=str(key)))


def test_files_that_were_swapped_are_found_before_anything_starts(tmp_path: Path):
    cert, key = certificate(tmp_path)
    check_frontend(Frontend(tls_cert_path=str(cert), tls_key_path=str(key)), "")
    with pytest.raises(ConfigError, match=r"--tls-cert-path .* and --tls-key-path .* cannot be used"):
        check_frontend(Frontend(tls_cert_path=str(key), tls_key_path=str(cert)), "")
