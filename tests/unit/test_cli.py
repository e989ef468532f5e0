"""The command line: what it says, what it refuses, and that it reads exactly what `commands` writes."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from odd_limits import ODD_LIMITS

from tandem import cli
from tandem.core.commands import (
    StartOptions,
    environment,
    rank_arguments,
    router_arguments,
    router_options,
    topology_options,
)
from tandem.core.config import Frontend, Group, Limits, RankOptions, RoleName, RouterOptions, Topology
from tandem.core.ids import RankId

FAKE = "fake:8"
README = Path(__file__).parents[2] / "README.md"

PLAIN = RankOptions(
    cluster="default",
    group=Group(RoleName.PREFILL, "p0", (4, 4)),
    rank=RankId(0),
    model=FAKE,
    served_model_name=FAKE,
    limits=Limits(),
    registry_url="unix:///run/registry.sock",
    run_dir="/run/tandem",
    secret_file="/run/secret",
)
ODD = RankOptions(
    cluster="a=b c",
    group=Group(RoleName.DECODE, "d-1", (1, 5, 2)),
    rank=RankId(2),
    model=FAKE,
    served_model_name="--help",
    limits=ODD_LIMITS,
    registry_url="rediss://user:p%20w@[::1]:6380/0?x=1",
    peers="a:1,[::1]:2",
    run_dir="/run/ä b",
    bind="fe80::1%eth0",
    dtype="bfloat16",
    engine="flashinfer",
    hidden_link="nccl",
    threads=3,
    secret_file="-secret",
    http_host="::",
    http_port=65535,
    transfer_backend="shm",
    transport_protocol="rdma",
    transport_device="mlx5_0,mlx5_1",
    transport_fallback="tcp",
    dump_dir="$HOME/'x'",
    record_dir="-r",
    drain_s=0.5,
    supervised=True,
    timer_scale=0.1 + 0.2,
)
ROUTER = RouterOptions(
    cluster="default", model=FAKE, served_model_name=FAKE, registry_url="redis://h", secret_file="/s"
)
ODD_ROUTER = RouterOptions(
    cluster="-",
    model=FAKE,
    served_model_name="a b",
    registry_url="redis://:password@h",
    peers="a:1",
    host="::1",
    port=0,
    admin_host="0.0.0.0",
    admin_port=9,
    secret_file="=",
    frontend=Frontend(
        policy="round_robin",
        max_concurrent_requests=1,
        queue_size=0,
        queue_timeout_secs=1 / 7,
        request_timeout_secs=1 / 3,
        retry_max_retries=0,
        cb_failure_threshold=1,
        cb_timeout_duration_secs=2.5,
        max_payload_size=1024,
        api_keys_file="/k k",
        tls_cert_path="-c",
        tls_key_path="k",
        otlp_traces_endpoint="http://h:4318/v1/traces",
    ),
    api_key="a secret of clients",
    admin_api_key="a secret of operators",
    drain_s=0.0,
    timer_scale=0.1 + 0.2,
    supervised=True,
)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], object]:
    """What the real command line makes of its arguments, instead of running it."""
    found: list[object] = []

    def keep(options: object) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr(cli, "serve_rank", keep)
    monkeypatch.setattr(cli, "serve_router", keep)

    def parse(arguments: list[str]) -> object:
        found.clear()
        assert cli.run(arguments) == 0
        return found[0]

    return parse


@pytest.fixture
def reads(parsed: Callable[[list[str]], object], monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], object]:
    """What the process for these options makes of all that it is told."""

    def read(options: RankOptions | RouterOptions) -> object:
        arguments = rank_arguments(options) if isinstance(options, RankOptions) else router_arguments(options)
        secrets = [options.registry_url, *(getattr(options, name, "") for name in ("api_key", "admin_api_key"))]
        assert not any(secret in word for secret in secrets if secret for word in arguments), "everyone can read them"
        with monkeypatch.context() as patch:
            for name, value in environment(options).items():
                patch.setenv(name, value)
            return parsed(arguments)

    return read


@pytest.mark.parametrize("options", [PLAIN, ODD], ids=["plain", "odd"])
def test_a_rank_reads_what_was_written_for_it(reads, options):
    assert reads(options) == options


@pytest.mark.parametrize("options", [ROUTER, ODD_ROUTER], ids=["plain", "odd"])
def test_a_router_reads_what_was_written_for_it(reads, options):
    assert reads(options) == options


PAIRS = [(PLAIN, ODD), (PLAIN.limits, ODD.limits), (ROUTER, ODD_ROUTER), (ROUTER.frontend, ODD_ROUTER.frontend)]


@pytest.mark.parametrize(("plain", "odd"), PAIRS)
def test_the_odd_values_differ_in_every_field(plain, odd):
    only_one = {"model", "context"}  # one value is all there is, or all that is tried
    fields = set(plain.__struct_fields__) - only_one
    assert {field for field in fields if getattr(plain, field) != getattr(odd, field)} == fields


def test_what_is_not_on_the_command_line_has_the_default_of_the_options(parsed):
    words = "--group p0 --rank 0 --pp-size 2 --registry-url unix:///run/registry.sock --run-dir /run/tandem"
    arguments = f"prefill {words} --cluster-secret-file /run/secret --model {FAKE}".split()
    assert parsed(arguments) == PLAIN
    assert parsed(f"router --registry-url redis://h --cluster-secret-file /s --model {FAKE}".split()) == ROUTER


def test_every_process_of_a_topology_gets_its_own_options(reads):
    groups = (Group(RoleName.PREFILL, "p0", (8,)), Group(RoleName.DECODE, "d0", (3, 5)))
    limits, frontend = Limits(page_size=4), Frontend(max_concurrent_requests=9)
    topology = Topology(cluster="c", model=FAKE, groups=groups, limits=limits, port=0, frontend=frontend)
    start = StartOptions(
        served_model_name="m",
        registry_url="redis://h",
        run_dir="/r",
        secret_file="/s",
        threads=2,
        api_key="a client's key",
    )
    ranks = topology_options(topology, start)
    assert [(each.group.name, each.rank) for each in ranks] == [("p0", 0), ("d0", 0), ("d0", 1)]
    assert [reads(each) for each in ranks] == ranks
    router = router_options(topology, start)
    assert reads(router) == router
    assert {each.cluster for each in ranks} == {router.cluster}


HUGE = 10**30
PLACES = "--registry-url r --run-dir /tmp --cluster-secret-file /dev/null"
DECODE = f"decode --group d0 --rank 0 --pp-size 1 {PLACES} --model fake:8"
REFUSED = [
    ("upp", ["'upp'", "'up'"]),
    ("nonsense", ["'nonsense'", "tandem --help"]),
    ("up --nonsense", ["--nonsense", "tandem up --help"]),
    ("up --port x", ["--port", "'x'"]),
    ("up --port=70000", ["--port", "'70000'", "65535"]),
    ("up --page-size 0", ["--page-size", "'0'"]),
    ("up --dtype int8", ["--dtype", "'int8'", "bfloat16"]),
    ("up --model /no/such/model", ["/no/such/model", "GGUF"]),
    ("up --model fake:x", ["fake:x"]),
    ("up --model fake:8 --prefill-pp 9", ["--prefill-pp is 9", "1 to 8"]),
    ("up --model fake:8 --decode-pp-partition 1,2", ["--decode-pp-partition", "'1,2'", "8"]),
    ("up --model fake:8 --decode-pp-partition a,b", ["--decode-pp-partition", "'a,b'"]),
    ("up --transfer-consensus paxos", ["--transfer-consensus", "'paxos'", "ring"]),
    ("up --host-pages=-1", ["--host-pages", "'-1'"]),
    ("up --timer-scale inf", ["--timer-scale is 'inf'", "1000"]),
    ("up --timer-scale nan", ["--timer-scale is 'nan'"]),
    ("up --timer-scale 0", ["--timer-scale is '0'", "0.01"]),
    ("up --timer-scale=-1", ["--timer-scale is '-1'", "0.01"]),
    (f"up --threads {HUGE}", [f"--threads is '{HUGE}'", "1024"]),
    (f"up --model fake:8 --page-size {HUGE}", [f"--page-size is {HUGE}", "1 to 4096"]),
    (f"up --model fake:8 --num-pages {HUGE}", [f"--num-pages is {HUGE}"]),
    (f"up --model fake:8 --host-pages {HUGE}", [f"--host-pages is {HUGE}"]),
    (f"up --model fake:8 --max-prefill-tokens {HUGE}", [f"--max-prefill-tokens is {HUGE}", "1 to 1048576"]),
    (f"up --model fake:8 --colocated --chunked-prefill-size {HUGE}", [f"--chunked-prefill-size is {HUGE}"]),
    (f"up --model fake:8 --pp-async-batch-depth {HUGE}", [f"--pp-async-batch-depth is {HUGE}", "0 to 1024"]),
    (f"up --model fake:8 --decode-pp {HUGE}", [f"--decode-pp is {HUGE}", "1 to 8"]),
    ("up --model fake:8 --port 0 --record-dir /proc/no", ["--record-dir is '/proc/no'", "No such file"]),
    ("up --model fake:8 --port 0 --dump-dir /proc/no", ["--dump-dir is '/proc/no'", "No such file"]),
    ("up --model fake:8 --colocated --pp 9", ["--pp is 9", "1 to 8"]),
    ("up --model fake:8 --colocated --pp-partition 1,2", ["--pp-partition", "'1,2'", "8"]),
    ("up --colocated --decode-pp 2", ["--decode-pp has no meaning with --colocated"]),
    ("up --colocated --disaggregation-transfer-backend shm", ["--disaggregation-transfer-backend has no meaning"]),
    (
        "up --disaggregation-transfer-backend nixl",
        ["--disaggregation-transfer-backend is 'nixl': 'nixl' is not one of"],
    ),
    ("up --colocated --host-pages 5", ["--host-pages has no meaning with --colocated"]),
    ("up --pp 2", ["--pp has no meaning without --colocated"]),
    ("prefill --group p0", ["--rank", "tandem prefill --help"]),
    (
        "decode --group d0 --rank 2 --pp-size 2 --registry-url r --run-dir /r --cluster-secret-file /s",
        ["--rank is 2", "--pp-size is 2"],
    ),
    (
        "decode --group d0 --rank 0 --pp-size 2 --registry-url r --run-dir /r --cluster-secret-file /no --model fake:8",
        ["--cluster-secret-file", "/no"],
    ),
    (f"{DECODE} --max-rooms {HUGE}", [f"--max-rooms is {HUGE}"]),
    (
        f"{DECODE} --disaggregation-transfer-backend shm --transport-protocol rdma",
        ["--transport-protocol has no meaning with --disaggregation-transfer-backend shm", "mooncake"],
    ),
    (f"{DECODE} --disaggregation-transfer-backend shm --transport-device m", ["--transport-device has no meaning"]),
    (f"{DECODE} --transport-device mlx5_0", ["--transport-device is 'mlx5_0'", "--transport-protocol rdma"]),
    ("doctor --transport-device mlx5_0", ["--transport-device is 'mlx5_0'", "--transport-protocol rdma"]),
    (f"{DECODE} --record-dir /proc/no", ["--record-dir is '/proc/no'", "No such file"]),
    (f"{DECODE} --dump-dir /proc", ["--dump-dir is '/proc'"]),
    (f"{DECODE} --run-dir /proc/no", ["--run-dir is '/proc/no'", "No such file"]),
    (f"{DECODE} --transport-fallback tcp", ["--transport-fallback is tcp", "--transport-protocol rdma"]),
    (f"decode --group p/0 --rank 0 --pp-size 1 {PLACES} --model fake:8", ["--group is 'p/0'", "letters, digits"]),
    (f"decode --group= --rank 0 --pp-size 1 {PLACES} --model fake:8", ["--group is ''"]),
    (f"{DECODE} --cluster=", ["--cluster is empty"]),
    (f"{DECODE} --http-host=", ["--http-host is empty", "0.0.0.0"]),
    ("up --model fake:8 --port 0 --host=", ["--host is empty", "0.0.0.0"]),
    ("up --model fake:8 --port 0 --host 192.0.2.1", ["--host is '192.0.2.1'", "no address of this host"]),
    ("router --registry-url r --cluster-secret-file /dev/null --host=", ["--host is empty"]),
    ("router --registry-url r --cluster-secret-file /dev/null --admin-host=", ["--admin-host is empty"]),
    ("up --page-size", ["'--page-size' requires an argument", "tandem up --help"]),
    ("control", ["Missing argument 'order'", "pause", "tandem control --help"]),
    ("kv", ["Missing command", "tandem kv --help"]),
    (
        "router --registry-url r --cluster-secret-file /dev/null --tls-cert-path c",
        ["--tls-cert-path", "--tls-key-path"],
    ),
    ("up --tls-key-path k", ["--tls-key-path needs --tls-cert-path"]),
    ("up --api-keys-file /no", ["--api-keys-file is '/no'"]),
    ("up --otlp-traces-endpoint h:4318", ["--otlp-traces-endpoint is 'h:4318'", "http://HOST:4318/v1/traces"]),
    ("up --policy best", ["--policy", "'best'"]),
    ("router --registry-url redis://h --cluster-secret-file /no", ["--cluster-secret-file", "/no"]),
    (
        "router --registry-url r --cluster-secret-file /s --request-timeout-secs inf",
        ["--request-timeout-secs is 'inf'", "86400"],
    ),
    ("control explode --group p0 --admin-url http://127.0.0.1:1", ["'order': 'explode'", "drain"]),
    ("control drain --group p0 --admin-url http://127.0.0.1:1", ["--admin-url is 'http://127.0.0.1:1'", "refused"]),
    ("control drain --group p0 --admin-url nonsense", ["--admin-url is 'nonsense'"]),
    ("trace 1 --admin-url http://127.0.0.1:1", ["--admin-url is 'http://127.0.0.1:1'", "refused"]),
    ("trace 1 --admin-url nonsense", ["--admin-url is 'nonsense'"]),
    ("trace 1", ["--admin-url", "tandem trace --help"]),
    ("status --admin-url http://127.0.0.1:1", ["--admin-url is 'http://127.0.0.1:1'", "refused"]),
    ("status", ["--admin-url", "tandem status --help"]),
    ("top --once --admin-url http://127.0.0.1:1", ["--admin-url is 'http://127.0.0.1:1'", "refused"]),
    ("top --interval 0 --admin-url http://127.0.0.1:1", ["--interval is '0'", "0.2"]),
    ("drain p0 --admin-url http://127.0.0.1:1", ["--admin-url is 'http://127.0.0.1:1'", "refused"]),
    ("drain '' --admin-url http://127.0.0.1:1", ["group is ''"]),
    ("control release --group p0 --admin-url http://127.0.0.1:1", ["'release'", "pause", "drain"]),
    ("generate hi --max-tokens 0", ["--max-tokens", "'0'"]),
    ("generate hi --model fake:8 --max-tokens 9000", ["--max-tokens is 9000", "8192"]),
    (f"generate hi --threads {HUGE}", [f"--threads is '{HUGE}'"]),
    (f"sim --jobs {HUGE}", [f"--jobs is '{HUGE}'"]),
    (f"sim --seeds {HUGE}", [f"--seeds is '{HUGE}'"]),
    ("doctor --listen h:1 --connect h:1", ["--listen and --connect", "one of them on each"]),
    ("doctor --listen 7000", ["--listen is '7000'", "10.0.0.1:7000"]),
    ("doctor --connect []:7000", ["--connect is '[]:7000'", "10.0.0.1:7000"]),
    ("trace '' --admin-url http://127.0.0.1:1", ["request_id is ''"]),
    ("kv release '' p0 --admin-url http://127.0.0.1:1", ["group is ''"]),
    ("kv release d0 '' --admin-url http://127.0.0.1:1", ["peer is ''"]),
    ("control drain --group '' --admin-url http://127.0.0.1:1", ["--group is ''"]),
    ("doctor --connect [::1]:99999", ["--connect is '[::1]:99999'"]),
    ("doctor --connect h:1", ["--connect needs --cluster-secret-file", "umask 077"]),
    ("doctor --connect h:1 --cluster-secret-file /no", ["cluster-secret-file", "/no"]),
    ("doctor --transport-protocol quic", ["--transport-protocol", "'quic'", "rdma"]),
    ("bench nonsense", ["nonsense", "e2e"]),
    ("bench sim --json /proc/no", ["--json is '/proc/no'", "No such file"]),
]


@pytest.mark.parametrize(("line", "words"), REFUSED, ids=[line for line, _ in REFUSED])
def test_what_is_wrong_is_said_in_one_line(capsys, line, words):
    assert cli.run(shlex.split(line)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1, output.err
    assert [word for word in words if word not in output.err] == [], output.err


def test_a_port_that_is_taken_is_named(capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.run(["up", "--model", FAKE, "--port", str(port)]) == 2
    assert f"--port is {port}" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["up", "--help"], ["decode", "--help"]])
def test_help_is_on_standard_output(capsys, arguments):
    assert cli.run(arguments) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "Usage: tandem" in output.out


@pytest.mark.parametrize("command", ["up", "router", "decode"])
def test_help_can_be_read_where_lines_have_80_columns(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("--retry-max-retries" in line or "--max-prefill-tokens" in line for line in lines), "names are whole"


def test_ctrl_c_ends_a_command_without_a_traceback(capsys, monkeypatch):
    import tandem.status

    def interrupted(*given: object, **more: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(tandem.status, "status", interrupted)
    assert cli.run(["status", "--admin-url", "http://127.0.0.1:1"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_the_benchmarks_are_listed(capsys):
    assert cli.run(["bench"]) == 0
    assert "transfer, overlap" in capsys.readouterr().out


def test_generate_writes_the_text_and_the_figures_apart(capsys):
    assert cli.run(["generate", "hello", "--model", FAKE, "--max-tokens", "3", "--threads", "1"]) == 0
    output = capsys.readouterr()
    assert len(output.out.strip("\n")) <= 3
    assert "prompt tokens" in output.err


def test_sim_prints_the_hash_last_and_it_repeats(capsys):
    lines = []
    for _ in range(2):
        assert cli.run(["sim", "--seed", "3", "--hash"]) == 0
        lines.append(capsys.readouterr().out.splitlines()[-1])
    assert lines[0] == lines[1] != ""


def test_a_failing_seed_comes_with_the_command_that_repeats_it(capsys, monkeypatch):
    from tandem import simulate

    def fail(seed: int, variant: object, tell: object) -> None:
        raise AssertionError(f"pages leak with {seed}")

    monkeypatch.setattr(simulate, "simulate", fail)
    assert cli.run(["sim", "--seeds", "5", "--first-seed", "40"]) == 1
    assert "pages leak with 40" in (error := capsys.readouterr().err)
    assert "to see it again: tandem sim --seed 40 --tell" in error
    assert "the smallest found: tandem sim --seed 40 --only none" in error


HEAVY = ("torch", "transformers", "mooncake")


@pytest.mark.parametrize(
    "code",
    [
        "from tandem import cli; cli.run(['--help'])",
        "from tandem.local import cluster",
        "from router import main",
        "from tandem import simulate; simulate.simulate(1)",
        "from prefill import main; from tandem.engine.load import build_engine;"
        "from tandem.engine.model import read_shape;"
        "build_engine(read_shape('fake:2'), (0, 2), page_size=1, num_pages=1)",
    ],
    ids=["help", "up", "router", "sim", "fake rank"],
)
def test_what_needs_no_torch_does_not_import_it(code):
    tail = f"; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.splitlines()[-1] == "[]"


def test_the_command_itself_imports_only_words():
    heavy = ("numpy", "redis", "zmq", "fastapi", "rich", "torch")
    code = f"import sys, tandem.cli; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


def test_a_key_of_this_shell_is_none_of_a_cluster_that_is_not_told_it(parsed, monkeypatch):
    monkeypatch.setenv("TANDEM_ADMIN_API_KEY", "of another cluster")
    for name, value in environment(ROUTER).items():
        monkeypatch.setenv(name, value)
    assert parsed(router_arguments(ROUTER)) == ROUTER


def test_no_process_of_a_cluster_has_a_secret_on_its_command_line():
    from tandem.local.cluster import commands_of

    groups = (Group(RoleName.PREFILL, "p0", (8,)), Group(RoleName.DECODE, "d0", (8,)))
    topology = Topology(cluster="c", model=FAKE, groups=groups, limits=Limits())
    start = StartOptions(
        served_model_name="m",
        registry_url="redis://:secret@h",
        run_dir="/r",
        secret_file="/s",
        api_key="a key",
        admin_api_key="an admin's",
    )
    commands = commands_of(topology, start)
    assert [command.name for command in commands] == ["p0.0", "d0.0", "router"]
    for command in commands:
        assert not [word for word in command.arguments if "secret@h" in word or "a key" in word or "an admin" in word]
        assert command.environment["TANDEM_REGISTRY_URL"] == "redis://:secret@h"
    assert commands[-1].environment["TANDEM_API_KEY"] == "a key"
    assert commands[-1].environment["TANDEM_ADMIN_API_KEY"] == "an admin's"


def test_the_readme_asks_for_the_model_that_up_serves(monkeypatch):
    from tandem.local import cluster

    found = []
    monkeypatch.setattr(cluster, "up", lambda wanted: found.append(wanted) or 0)
    assert cli.run(["up"]) == 0
    served = found[0].served_model_name or cli.served_name(found[0].model)
    asked = re.findall(r'"model": "([^"]+)"', README.read_text())
    assert asked, "README.md has no curl"
    assert set(asked) == {served}


def test_defaults_of_up_fit_the_bundled_model(monkeypatch):
    from tandem.local import cluster
    from tandem.local.wanted import served_name, topology_of

    found = []
    monkeypatch.setattr(cluster, "up", lambda wanted: found.append(wanted) or 0)
    assert cli.run(["up"]) == 0
    topology = topology_of(found[0])
    assert [(group.name, group.partition) for group in topology.groups] == [("p0", (15, 15)), ("d0", (19, 11))]
    assert topology.port == 8000
    assert topology.limits.context <= topology.limits.num_pages * topology.limits.page_size <= 65_536
    assert served_name(topology.model) == "SmolLM2-135M-Instruct"
    assert msgspec.structs.replace(topology.limits, num_pages=0, context=0) == Limits(num_pages=0, context=0)


def test_the_transfer_backend_of_up_reaches_every_rank(monkeypatch):
    from tandem.local import cluster
    from tandem.local.wanted import topology_of

    found = []
    monkeypatch.setattr(cluster, "up", lambda wanted: found.append(wanted) or 0)
    assert cli.run(["up", "--model", FAKE, "--disaggregation-transfer-backend", "shm"]) == 0
    start = StartOptions(served_model_name="m", registry_url="redis://h", run_dir="/r", secret_file="/s")
    ranks = topology_options(topology_of(found[0]), start)
    assert [each.transfer_backend for each in ranks] == ["shm"] * 4


def test_colocated_groups_have_names_and_sizes_of_their_own(monkeypatch):
    from tandem.local import cluster
    from tandem.local.wanted import topology_of

    found = []
    monkeypatch.setattr(cluster, "up", lambda wanted: found.append(wanted) or 0)
    assert cli.run(["up", "--model", FAKE, "--colocated", "--groups", "2", "--pp", "3", "--no-prefix-cache"]) == 0
    topology = topology_of(found[0])
    assert topology.groups == tuple(Group(RoleName.COLOCATED, name, (3, 3, 2)) for name in ("c0", "c1"))
    assert not topology.limits.prefix_cache


def test_the_limits_of_up_reach_its_topology(monkeypatch):
    from tandem.local import cluster
    from tandem.local.wanted import topology_of

    found = []
    monkeypatch.setattr(cluster, "up", lambda wanted: found.append(wanted) or 0)
    chosen = "--host-pages 7 --no-prefix-cache --dynamic-chunking --transfer-consensus ring --page-size 8"
    assert cli.run(["up", "--model", FAKE, *chosen.split()]) == 0
    limits = topology_of(found[0]).limits
    assert (limits.host_pages, limits.prefix_cache, limits.dynamic_chunking) == (7, False, True)
    assert (limits.transfer_consensus, limits.page_size) == ("ring", 8)
