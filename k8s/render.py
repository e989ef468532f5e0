"""`python -m k8s.render`: values for the chart from the flags of `tandem up`, on standard output.

    python -m k8s.render --prefill-groups 2 --prefill-pp 4 --decode-pp 8 --model /models/qwen3 > values.json
    helm install tandem k8s/chart -f values.json

JSON is YAML, so Helm reads it; what it does not say has the chart's own default.
"""

import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import typer

from k8s.values import Values, values_of
from tandem import cli
from tandem.core.commands import StartOptions
from tandem.core.config import Limits
from tandem.core.errors import ConfigError
from tandem.local.wanted import served_name, topology_of
from tandem.usage import explain

POD = {
    "host": "routers serve on all addresses of their pod",
    "port": "set router.service.port",
    "admin_port": "the chart has one",
    "registry_url": "set registry.existingSecret",
    "api_key": "set router.apiKey.existingSecret",
    "admin_api_key": "set secrets.existingSecret",
    "api_keys_file": "set router.apiKeys.existingSecret",
    "tls_cert_path": "set router.tls.existingSecret",
    "tls_key_path": "set router.tls.existingSecret",
    "dump_dir": "set ranks.dumps.volume",
}
"""Flags of `tandem up` that are about this machine, and what says the same of a pod."""

app = typer.Typer(name="k8s.render", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@functools.wraps(cli.up)
def render(context: typer.Context, **given: Any) -> None:
    """Values for the chart from the flags of `tandem up`."""
    print(json.dumps(rendered(context, given), indent=2))


app.command(
    help="Print values for the chart, made from the flags of `tandem up`. Threads: the cores of a pod, unless given."
)(render)


def rendered(context: typer.Context, given: dict[str, Any]) -> Values:
    """Raises ConfigError for flags that mean nothing in a chart."""
    for name, instead in POD.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"--{name.replace('_', '-')} is about one machine: {instead}")
    wanted = cli.wanted_cluster(context)
    pages = Limits().num_pages if wanted.num_pages is None else wanted.num_pages
    topology = topology_of(msgspec.structs.replace(wanted, num_pages=pages))
    start = StartOptions(
        served_model_name=given["served_model_name"] or served_name(wanted.model),
        registry_url="",
        run_dir="",
        secret_file="",
        threads=given["threads"] or 1,
        record_dir=given["record_dir"],
        timer_scale=given["timer_scale"],
        drain_s=given["drain_s"],
    )
    values = values_of(topology, start) | {"cluster": ""}
    if not given["threads"]:
        del values["ranks"]["flags"]["threads"]  # the chart knows the cores of its pods
    if not given["model"]:
        values["model"]["path"] = ""  # the image has it, at a path of its own
    return values


def run(arguments: Sequence[str]) -> int:
    """Returns the exit status; what was wrong is one line on standard error."""
    try:
        app(list(arguments), prog_name="k8s.render", standalone_mode=False)
    except typer.TyperException as error:
        return cli.refuse(explain(error, arguments))
    except ConfigError as error:
        return cli.refuse(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
