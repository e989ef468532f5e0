"""Hidden states that stay on the device: the two ends of a link, with gloo in the place of NCCL."""

import datetime
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from wire import Wire

from tandem.engine.flashinfer.link import Arrivals, Departures, NcclIn, NcclOut, nccl_group

CPU = torch.device("cpu")
HIDDEN = 8


def gloo(store: Any, rank: int) -> Any:
    return dist.ProcessGroupGloo(store, rank, 2, timeout=datetime.timedelta(seconds=60))


class Ends:
    """Both ends; the sender has a thread, as the two of them wait for each other when they meet."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.departures = Departures(CPU)
        self.arrivals = Arrivals(CPU, HIDDEN, torch.float32)
        self.out = NcclOut(self.wire, self.departures, "127.0.0.1", gloo)
        self.into = NcclIn(self.wire, self.arrivals, gloo)

    def pass_on(self, tensors: list[torch.Tensor]) -> list[tuple[bytes, torch.Tensor]]:
        tickets = [self.departures.put(tensor) for tensor in tensors]
        for tensor in tensors:
            tensor.fill_(-1)  # as the next forward does with an output in place

        def send() -> None:
            for number, ticket in enumerate(tickets):
                self.out.send(b"header %d" % number, ticket)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        found = []
        while len(found) < len(tensors):
            assert self.wire.came.acquire(timeout=60), "nothing was sent"
            received = self.into.receive()
            if received is not None:
                found.append((received[0], self.arrivals.take(received[1])))
                self.into.release()
        sender.join(60)
        return found


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.out.close()
    made.into.close()


def test_tensors_arrive_in_order_under_their_headers_as_they_were_put(ends: Ends):
    sent = [torch.randn(tokens, HIDDEN) for tokens in (3, 1, 7)]
    copies = [tensor.clone() for tensor in sent]
    found = ends.pass_on(sent)
    assert [header for header, _ in found] == [b"header 0", b"header 1", b"header 2"]
    for (_, tensor), expected in zip(found, copies, strict=True):
        assert torch.equal(tensor, expected)


def test_a_link_goes_on_after_its_first_tensors(ends: Ends):
    for _ in range(2):
        ((_, tensor),) = ends.pass_on([torch.full((2, HIDDEN), 5.0)])
        assert torch.equal(tensor, torch.full((2, HIDDEN), 5.0))


def test_what_is_no_ticket_is_counted_and_not_waited_for(ends: Ends):
    ends.pass_on([torch.zeros(1, HIDDEN)])
    ends.wire.send(b"header", memoryview(b"short"))
    assert ends.into.receive() is None
    assert ends.into.malformed == 1


def test_a_ticket_without_a_greeting_is_counted():
    wire = Wire()
    into = NcclIn(wire, Arrivals(CPU, HIDDEN, torch.float32), gloo)
    wire.send(b"header", Departures(CPU).put(torch.zeros(1, HIDDEN)))
    assert into.receive() is None
    assert into.malformed == 1


def test_a_closed_end_closes_its_link(ends: Ends):
    ends.pass_on([torch.zeros(1, HIDDEN)])
    ends.out.close()
    assert ends.wire.closed == 1


@pytest.mark.skipif(dist.is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_says_so():
    with pytest.raises(Exception, match="--hidden-link is nccl, but this torch was built without NCCL"):
        nccl_group(None, 0)
