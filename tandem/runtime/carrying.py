"""Both ends of the ring's hidden link as `--hidden-link` says. What NCCL needs is imported only then."""

from tandem.core.config import RankOptions
from tandem.ports import Engine, HiddenIn, HiddenOut


def carried_out(options: RankOptions, link: HiddenOut, engine: Engine) -> HiddenOut:
    """The end towards the next rank, over a link that is open. Raises OSError when it cannot listen there."""
    if options.hidden_link == "host":
        return link
    from tandem.engine.flashinfer.engine import FlashInferEngine
    from tandem.engine.flashinfer.link import Departures, NcclOut

    assert isinstance(engine, FlashInferEngine)
    assert isinstance(engine.outbox, Departures)
    return NcclOut(link, engine.outbox, options.bind or "127.0.0.1")


def carried_in(options: RankOptions, link: HiddenIn, engine: Engine) -> HiddenIn:
    """The end from the rank before, over a link that is open."""
    if options.hidden_link == "host":
        return link
    from tandem.engine.flashinfer.engine import FlashInferEngine
    from tandem.engine.flashinfer.link import Arrivals, NcclIn

    assert isinstance(engine, FlashInferEngine)
    assert isinstance(engine.inbox, Arrivals)
    return NcclIn(link, engine.inbox)
