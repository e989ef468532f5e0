"""What the chart writes on command lines is what the code means: each is read by the real command line."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec
import pytest
import yaml
from chart import MATRIX, NAME, Object, Pod, Values, pods, rendered, run_helm, secrets_of, template
from odd_limits import ODD_LIMITS

from k8s import render, schema
from k8s.values import NEVER, PLACE, values_of
from tandem import cli
from tandem.core.commands import API_KEY, REGISTRY_URL, StartOptions, router_options, topology_options
from tandem.core.config import Frontend, Group, RankOptions, RoleName, RouterOptions, Topology
from tandem.core.errors import ConfigError
from tandem.doctor import run as doctor_run
from tandem.doctor.options import DoctorOptions
from tandem.engine import model
from tandem.engine.shape import ModelShape

IP = "10.1.2.3"
EVERY = pytest.mark.parametrize("name", MATRIX)
FILES = {"redis": {"u": "redis://there"}, "own": {"admin-api-key": "k"}, "key": {"api-key": "a client's"}}


READ: dict[Any, Any] = {}
"""What has been read once: the same words mean the same."""


@cache
def shape_of_any(path: str, read: Callable[[str], ModelShape] = model.read_shape) -> ModelShape:
    """Of a model that is on a volume of the pod: as the bundled one."""
    return read(str(model.bundled_model_path()) if path.startswith("/models") else path)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str], dict[str, str]], Any]:
    """What the command makes of its words and its environment, instead of running."""
    found: list[Any] = []

    def keep(options: Any) -> int:
        found.append(options)
        return 0

    for module, name in ((cli, "serve_rank"), (cli, "serve_router"), (doctor_run, "serve")):
        monkeypatch.setattr(module, name, keep)
    monkeypatch.setattr(model, "read_shape", shape_of_any)

    def parse(words: list[str], environment: dict[str, str]) -> Any:
        known = (tuple(words), tuple(environment.items()))
        if known not in READ:
            READ[known] = parsed(words, environment)
        return READ[known]

    def parsed(words: list[str], environment: dict[str, str]) -> Any:
        found.clear()
        with monkeypatch.context() as patch:
            for each in (REGISTRY_URL, API_KEY, "TANDEM_ADMIN_API_KEY"):
                patch.delenv(each, raising=False)
            for each, value in environment.items():
                patch.setenv(each, value)
            assert words[0] == "tandem"
            assert cli.run(words[1:]) == 0, words
        return found[0]

    return parse


def told(objects: list[Object]) -> Iterator[tuple[Pod, Object, list[str], dict[str, str]]]:
    """Every container of Tandem's, with its words and environment as Kubernetes fills them in."""
    secrets = secrets_of(objects) | FILES
    for pod in pods(objects):
        for container in (*pod.spec.get("initContainers", ()), *pod.spec["containers"]):
            if container["command"] == ["tandem"]:
                environment = pod.environment(container, IP, secrets)
                yield pod, container, pod.words(container, environment), environment


@EVERY
def test_every_command_is_one_that_the_command_line_reads(read, name):
    options = [read(words, environment) for _, _, words, environment in told(rendered(name))]
    assert len(options) >= 2


@EVERY
def test_every_rank_of_every_group_has_a_place_of_its_own(read, name):
    objects = rendered(name)
    found = [
        (pod, read(words, environment))
        for pod, container, words, environment in told(objects)
        if container["name"] == "rank"
    ]
    places = sorted((options.group.name, options.rank) for _, options in found)
    sizes = {options.group.name: options.group.size for _, options in found}
    assert places == sorted((group, rank) for group, size in sizes.items() for rank in range(size))
    for pod, options in found:
        assert options.group.role.value == pod.component
        assert options.group.name[0] == pod.component[0]
        assert (options.bind, options.http_host) == (IP, IP)
        assert options.http_port == pod.port("http")
        assert not options.supervised


@EVERY
def test_all_processes_of_a_release_meet_in_one_cluster(read, name):
    options = [read(words, environment) for _, _, words, environment in told(rendered(name))]
    assert len({each.cluster for each in options}) == 1
    assert len({each.registry_url for each in options}) == 1
    assert all(each.registry_url.startswith("redis://") for each in options)
    assert {each.secret_file for each in options} == {"/etc/tandem/cluster/secret"}
    serving = [each for each in options if isinstance(each, RankOptions | RouterOptions)]
    assert len({(each.model, each.served_model_name) for each in serving}) == 1


@EVERY
def test_no_secret_is_on_a_command_line(name):
    objects = rendered(name)
    held = [value for keys in (secrets_of(objects) | FILES).values() for value in keys.values()]
    for _, _, words, _ in told(objects):
        assert not [word for word in words for value in held if value in word and len(value) > 3]


def test_the_chart_and_the_code_say_which_flags_are_the_charts_own():
    for pod, container, words, _ in told(rendered("front")):
        flags = {word.removeprefix("--").partition("=")[0] for word in words[2:]}
        if container["name"] != "preflight":
            assert flags <= PLACE | {"threads"}, pod.name  # which follow the cores, if nobody says how many
    assert not PLACE & NEVER


def test_what_is_said_for_one_role_stands_before_what_is_said_for_all(read):
    every = {"host-pages": 5, "no-prefix-cache": True, "transport-fallback": "tcp", "transport-protocol": "rdma"}
    own = {"host-pages": 0, "no-prefix-cache": False, "transport-protocol": "tcp", "transport-fallback": "none"}
    objects = template({"ranks": {"flags": every}, "decode": {"flags": own}})
    found = [(pod.component, read(words, environment)) for pod, _, words, environment in told(objects)]
    ranks = [(role, each) for role, each in found if isinstance(each, RankOptions)]
    assert {(role, each.limits.host_pages, each.limits.prefix_cache) for role, each in ranks} == {
        ("prefill", 5, False),
        ("decode", 0, True),
    }
    doctors = [(role, each.transport_protocol) for role, each in found if isinstance(each, DoctorOptions)]
    assert set(doctors) == {("prefill", "rdma"), ("decode", "tcp")}


@pytest.mark.parametrize(
    ("resources", "threads"),
    [
        ({"requests": {"cpu": "8"}}, 8),
        ({"requests": {"cpu": "8"}, "limits": {"cpu": "2500m"}}, 2),
        ({"requests": {"cpu": 3.5}}, 3),
        ({"requests": {"cpu": "250m"}}, 1),
        ({"requests": {"cpu": None}, "limits": {"cpu": None}}, 1),
    ],
)
def test_a_rank_computes_with_the_whole_cores_of_its_pod(read, resources, threads):
    objects = template({"prefill": {"resources": resources}, "decode": {"flags": {"threads": 7}}})
    found = [(pod.component, read(words, environment)) for pod, _, words, environment in told(objects)]
    ranks = {(role, each.threads) for role, each in found if isinstance(each, RankOptions)}
    assert ranks == {("prefill", threads), ("decode", 7)}


# a topology, by way of the chart


FRONT = Frontend(policy="round_robin", queue_size=0, queue_timeout_secs=1 / 7, max_payload_size=4_194_305)
P, D, C = RoleName.PREFILL, RoleName.DECODE, RoleName.COLOCATED
PAIR = (Group(P, "p0", (4, 4)), Group(P, "p1", (4, 4)), Group(D, "d0", (3, 3, 2)))
START = StartOptions(
    served_model_name="a name",
    registry_url="r",
    run_dir="/r",
    secret_file="/s",
    threads=3,
    drain_s=0.25,
    timer_scale=1.5,
)


def topology(groups: tuple[Group, ...], **how: Any) -> Topology:
    return Topology(
        cluster="c", model="fake:8", groups=groups, limits=ODD_LIMITS, frontend=FRONT, dtype="float32", **how
    )


@pytest.mark.parametrize("kind", ["lws", "statefulset"])
@pytest.mark.parametrize("groups", [PAIR, (Group(C, "c0", (8,)), Group(C, "c1", (8,)))], ids=["pair", "colocated"])
def test_pods_are_told_what_tandem_up_tells_its_processes(read, kind, groups):
    wanted = topology(groups)
    objects = template(values_of(wanted, START) | {"workload": {"kind": kind}})
    expected = {
        (each.group.name, each.rank): msgspec.structs.replace(
            each,
            bind=IP,
            http_host=IP,
            http_port=8081,
            run_dir="/dev/shm/tandem",
            dump_dir="/var/lib/tandem/dumps",
            secret_file="/etc/tandem/cluster/secret",
            registry_url=secrets_of(objects)[f"{NAME}-registry"]["url"],
        )
        for each in topology_options(wanted, START)
    }
    options = [
        read(words, environment)
        for _, container, words, environment in told(objects)
        if container["name"] != "preflight"
    ]
    ranks = {(each.group.name, each.rank): each for each in options if isinstance(each, RankOptions)}
    assert ranks == expected
    [router, _] = [each for each in options if isinstance(each, RouterOptions)]
    assert router == msgspec.structs.replace(
        router_options(wanted, START),
        host="0.0.0.0",
        port=8000,
        admin_host="0.0.0.0",
        admin_port=8001,
        secret_file="/etc/tandem/cluster/secret",
        registry_url=router.registry_url,
        admin_api_key=secrets_of(objects)[NAME]["admin-api-key"],
    )


def test_a_topology_that_no_release_can_be_is_refused():
    with pytest.raises(ConfigError, match="pods share no memory"):
        values_of(topology(PAIR, transfer_backend="shm"), START)
    with pytest.raises(ConfigError, match="one shape for each role"):
        values_of(topology((*PAIR, Group(D, "d1", (8,)))), START)


# the values file from flags


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Values:
    assert render.run(words) == 0
    values: Values = json.loads(capsys.readouterr().out)
    return values


def test_flags_of_tandem_up_become_values_that_render(read, capsys):
    values = printed(
        capsys, "--model=fake:8", "--prefill-groups=2", "--decode-pp=4", "--page-size=32", "--queue-size=7"
    )
    options = [
        read(words, environment)
        for _, container, words, environment in told(template(values))
        if container["name"] != "preflight"
    ]
    ranks = [each for each in options if isinstance(each, RankOptions)]
    assert sorted({(each.group.name, each.group.partition) for each in ranks}) == [
        ("d0", (2, 2, 2, 2)),
        ("p0", (4, 4)),
        ("p1", (4, 4)),
    ]
    assert {(each.limits.page_size, each.limits.num_pages) for each in ranks} == {(32, 4096)}
    assert {each.threads for each in ranks} == {2}, "the cores that the chart asks for"
    assert {each.frontend.queue_size for each in options if isinstance(each, RouterOptions)} == {7}


def test_the_bundled_model_is_left_to_the_image(capsys):
    assert printed(capsys)["model"] == {"path": "", "name": "SmolLM2-135M-Instruct"}
    assert printed(capsys, "--colocated", "--groups=2", "--pp=1")["colocated"]["groups"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port=1"], "--port is about one machine: set router.service.port"),
        (["--api-key=k"], "--api-key is about one machine: set router.apiKey.existingSecret"),
        (["--model=fake:8", "--prefill-pp=9"], "--prefill-pp is 9"),
        (["--colocated", "--decode-pp=2"], "--decode-pp has no meaning with --colocated"),
        (["--disaggregation-transfer-backend=shm"], "use mooncake"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_flags_that_mean_nothing_in_a_chart_are_refused(words, said, capsys):
    assert render.run(words) == 2
    assert said in capsys.readouterr().err


# the schema of the values


def test_the_schema_knows_the_flags_of_the_command_line_as_they_are_now():
    assert json.loads(schema.PATH.read_text()) == schema.values_schema(), "run `python -m k8s.schema`"


RAW = re.compile(r"\.(global|imagePullSecrets|flags|.*\.(resources|clients|operators|prometheus|to))\b.*")
"""What has the shape of Kubernetes' own, or is the operator's."""


def absent(node: Any, values: Any, path: str = "") -> Iterator[str]:
    """Properties of the schema that the values do not show."""
    for name, inner in node.get("properties", {}).items():
        here = f"{path}.{name}"
        if not RAW.fullmatch(here) and not here.endswith(".flags"):
            yield from absent(inner, values[name], here) if name in values else [here]


def test_the_charts_own_values_show_everything_that_the_schema_knows():
    shown = yaml.safe_load(run_helm("show", "values", str(schema.PATH.parent)).stdout)
    assert not list(absent(schema.values_schema(), shown))
