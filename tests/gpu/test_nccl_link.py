"""The two ends of a hidden link over NCCL, on two GPUs. Not run on hardware yet: see docs/gpu.md."""

import threading

import pytest
import torch
import torch.distributed as dist
from wire import Wire

from tandem.engine.flashinfer.link import Arrivals, Departures, NcclIn, NcclOut

pytestmark = [
    pytest.mark.skipif(
        torch.cuda.device_count() < 2 or not dist.is_nccl_available(),
        reason="there are no two CUDA devices with NCCL here",
    ),
    pytest.mark.filterwarnings("default"),  # what NCCL's bindings warn of is not ours to mend
]
HIDDEN = 64


def test_tensors_arrive_as_they_were_though_their_place_is_filled_again():
    wire = Wire()
    departures = Departures(torch.device("cuda", 0))
    arrivals = Arrivals(torch.device("cuda", 1), HIDDEN, torch.bfloat16)
    output = torch.empty(16, HIDDEN, dtype=torch.bfloat16, device="cuda:0")

    def send() -> None:
        torch.cuda.set_device(0)
        out = NcclOut(wire, departures, "127.0.0.1")
        for number in range(4):
            departures.fence()
            output.fill_(number)
            out.send(b"%d" % number, departures.put(output))
        torch.cuda.synchronize()

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    torch.cuda.set_device(1)
    into = NcclIn(wire, arrivals)
    for number in range(4):
        received = None
        while received is None:
            assert wire.came.acquire(timeout=60), "nothing was sent"
            received = into.receive()
        assert received[0] == b"%d" % number
        found = arrivals.take(received[1])
        assert torch.equal(found.cpu(), torch.full((16, HIDDEN), number, dtype=torch.bfloat16))
    sender.join(60)
    into.close()
