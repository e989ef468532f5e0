"""The router of the goodput benchmark: a real one, with a tokenizer of bytes and without a registry."""

import logging
import sys

import zmq

from bench.beside import ordered, tell
from bench.goodput import QUEUE_TIMEOUT_S, Served
from bench.modelled_groups import Where
from router.app import Parts, Router
from router.ports import Model
from router.upstream import Connect
from tandem.core.config import Frontend, RouterOptions
from tandem.engine.model import read_shape
from tandem.engine.tokens import load_tokenizer


def connector(context: "zmq.Context[zmq.Socket[bytes]]") -> Connect:
    """Plain sockets: all of it is on this host."""

    def connect(address: str) -> "zmq.Socket[bytes]":
        dealer = context.socket(zmq.DEALER)
        dealer.connect(address)
        return dealer

    return connect


def main(groups: Where) -> None:
    """Serve until a signal."""
    logging.disable(logging.INFO)
    known = groups.members()
    frontend = Frontend(queue_timeout_secs=QUEUE_TIMEOUT_S)
    options = RouterOptions(
        cluster="", model="tiny", served_model_name="tiny", registry_url="", port=0, frontend=frontend
    )
    shape = read_shape("fake:1")
    router = Router(
        options, Parts(Model("tiny", shape.vocab, load_tokenizer("fake:1", shape)), lambda: known, connector)
    )

    sys.exit(router.serve(lambda url, admin_url: tell(Served(url))))


if __name__ == "__main__":
    main(ordered(Where))
