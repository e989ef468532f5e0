"""`tandem doctor`: looks at this host first, and then at more than one needs packages for."""

import os
import sys
from typing import NoReturn

from tandem.doctor.checks import check_host
from tandem.doctor.facts import read_facts
from tandem.doctor.options import DoctorOptions, check_options
from tandem.doctor.report import Report


def serve(options: DoctorOptions) -> NoReturn:
    """Run, and end the process with the status. Raises ConfigError before Mooncake is started.

    At once: taking an engine apart lasts a second, and aborts the process while a peer keeps a first contact waiting.
    """
    status = run(options)
    sys.stdout.flush()
    os._exit(status)


def run(options: DoctorOptions) -> int:
    """Look at everything and say it; returns the exit status: 1 when anything failed. Raises ConfigError."""
    check_options(options)
    facts, report = read_facts(), Report(as_json=options.as_json)
    found = check_host(facts, options.transport_protocol, options.transport_device)
    if "" in facts.packages.values():
        report.add(found)
        return report.finish()
    from tandem.doctor.engines import try_engines  # imports those packages
    from tandem.doctor.visit import visit

    visited = visit(options, facts)
    report.add(found)
    report.add(try_engines(options.model))
    report.add(visited)
    return report.finish()
