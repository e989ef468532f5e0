"""A Prometheus that scrapes the pods of a release as its monitors say, and what it has found."""

import json
import subprocess
import sys
from typing import Any
from urllib.parse import quote

import yaml
from chart import COMPONENT, Object, of_kind, selects, tool
from pod_net import COMMAND_S, LONG_S, Host
from waiting import eventually

SCRAPE_S = 2
"""From one scrape to the next; also for how long Prometheus waits for an answer."""
LISTEN = "127.0.0.1:9090"
GET = """
import json, sys, urllib.error, urllib.parse, urllib.request
answers = []
for path in json.load(sys.stdin):
    try:
        with urllib.request.urlopen("http://%s/api/v1/" + path, timeout=30) as answer:
            answers.append(json.load(answer))
    except urllib.error.HTTPError as error:
        told = error.read().decode()
        is_json = "json" in error.headers.get_content_type()
        answers.append(json.loads(told) if is_json else {"status": "error", "error": told})
    except OSError as error:
        answers.append({"status": "error", "error": str(error)})
print(json.dumps(answers))
""".replace("%s", LISTEN)


class Prometheus:
    """Runs on a host. `secrets` are those that the monitors name; `rules` are the groups of a PrometheusRule."""

    def __init__(self, host: Host, pods: list[Host], objects: list[Object], secrets: dict[str, dict[str, str]]) -> None:
        self._host = host
        host.root.joinpath("rules.yaml").write_text(yaml.safe_dump({"groups": rules_of(objects)}))
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [job for found in objects for job in jobs(found, objects, pods, secrets)],
        }
        path = host.root / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [tool("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={host.root}/data"]
        with (host.root / "prometheus.log").open("w") as log:
            self.process = subprocess.Popen(
                [*host.inside, *command, f"--web.listen-address={LISTEN}"], stdout=log, stderr=log, text=True
            )
        host.processes.append(self.process)

    def get(self, *paths: str) -> list[Any]:
        """What the API says to each of these: `status`, and `data` or `error`; in words while it starts, with a 503."""
        done = subprocess.run(
            [*self._host.inside, sys.executable, "-I", "-c", GET],
            input=json.dumps(paths),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert done.returncode == 0, done.stderr
        answers: list[Any] = json.loads(done.stdout)
        return answers

    def until_all_are_up(self, targets: int) -> None:
        def up() -> bool:
            [told] = self.get("targets")
            found = told["data"]["activeTargets"] if told["status"] == "success" else []
            print(down := [(each["scrapeUrl"], each["lastError"]) for each in found if each["health"] != "up"])
            return len(found) == targets and not down

        eventually(up, "all targets are up", LONG_S)


def rules_of(objects: list[Object]) -> list[Any]:
    [rule] = of_kind(objects, "PrometheusRule")
    groups: list[Any] = rule["spec"]["groups"]
    return groups


def jobs(found: Object, objects: list[Object], hosts: list[Host], secrets: dict[str, dict[str, str]]) -> list[Any]:
    """What the operator makes of a monitor, with the pods that it selects."""
    match found["kind"]:
        case "PodMonitor":
            chosen = [host for host in hosts if selects(found["spec"]["selector"], host.end.labels)]
            [endpoint] = found["spec"]["podMetricsEndpoints"]
        case "ServiceMonitor":
            services = of_kind(objects, "Service")
            [service] = [each for each in services if selects(found["spec"]["selector"], each["metadata"]["labels"])]
            chosen = [host for host in hosts if selects({"matchLabels": service["spec"]["selector"]}, host.end.labels)]
            [endpoint] = found["spec"]["endpoints"]
        case _:
            return []
    job: dict[str, Any] = {
        "job_name": found["metadata"]["name"],
        "metrics_path": endpoint["path"],
        "relabel_configs": [
            {"target_label": each["targetLabel"], "replacement": each["replacement"]}
            for each in endpoint["relabelings"]
        ],
        "static_configs": [_target(host, endpoint["port"]) for host in chosen],
    }
    if authorization := endpoint.get("authorization"):
        named = authorization["credentials"]
        job["authorization"] = {"type": "Bearer", "credentials": secrets[named["name"]][named["key"]]}
    return [job]


def _target(host: Host, port: str) -> dict[str, Any]:
    pod = host.end.pod
    assert pod is not None
    return {"targets": [f"{host.end.ip}:{pod.port(port)}"], "labels": {"pod": pod.name, "is": pod.labels[COMPONENT]}}


def to_query(expression: str) -> str:
    """A panel's expression, with what Grafana would put for its variables, as a path of the API."""
    filled = (
        expression.replace("$cluster", "in pods")
        .replace("$group", ".*")
        .replace("$__rate_interval", f"{20 * SCRAPE_S}s")
    )
    return f"query?query={quote(filled)}"
