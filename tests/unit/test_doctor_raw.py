"""The raw connection: every byte counted, and only who knows the token is heard."""

import msgspec

from tandem.doctor.raw import Sink, send
from tandem.doctor.words import Moved, Port

HOST = "127.0.0.1"


def test_what_is_sent_is_counted_by_the_receiver():
    moved = send(HOST, Sink(HOST).port, seconds=0.05)
    assert moved.detail == ""
    assert moved.bytes > 0
    assert moved.gb_s > 0


def test_who_does_not_know_the_token_is_not_heard():
    port = Sink(HOST).port
    moved = send(HOST, msgspec.structs.replace(port, token=bytes(16)), seconds=0.05)
    assert f"port {port.port} of {HOST}" in moved.detail


def test_a_port_takes_one_connection_only():
    sink = Sink(HOST)
    assert send(HOST, sink.port, seconds=0.05).detail == ""
    assert send(HOST, sink.port).detail == f"port {sink.port.port} of {HOST}: [Errno 111] Connection refused"


def test_a_port_that_could_not_be_bound_says_so_itself():
    assert send(HOST, Port(0, b"", "no port can be bound")) == Moved(detail="no port can be bound")
