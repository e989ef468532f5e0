"""The flags of `tandem doctor`."""

from typing import Annotated

from typer import Option

from tandem import flags


def doctor(
    listen: Annotated[
        str | None, Option(metavar="ADDR:PORT", help="Wait there for the other host's --connect.")
    ] = None,
    connect: Annotated[str | None, Option(metavar="HOST:PORT", help="Where the other host's --listen waits.")] = None,
    wait: Annotated[float, Option(min=1, max=3600, help="Seconds to wait for the other host.")] = 60.0,
    transport_protocol: flags.TransportProtocol = "tcp",
    transport_device: flags.TransportDevice = "",
    cluster_secret_file: flags.SecretFile = "",
    registry_url: flags.KnownRegistryUrl = "",
    cluster: flags.Cluster = "default",
    model: Annotated[
        str, Option(metavar="PATH", help="Say which engine would compute this one, not the bundled one.")
    ] = "",
    as_json: flags.Json = False,
) -> None:
    """See whether Tandem would run on this host, or between this host and another."""
    from tandem.doctor.options import DoctorOptions
    from tandem.doctor.run import serve

    options = DoctorOptions(
        listen=listen,
        connect=connect,
        wait_s=wait,
        transport_protocol=transport_protocol,
        transport_device=transport_device,
        secret_file=cluster_secret_file,
        registry_url=registry_url,
        cluster=cluster,
        model=model,
        as_json=as_json,
    )
    serve(options)
