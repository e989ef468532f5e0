"""A node with the Mooncake transport over TCP: what the tests of this transport start, as a script."""

import ctypes
import mmap
import sys
from functools import partial

from nodes import PAGE, PAGES, fill, serve, use

from kvtransfer.transports.mooncake import MooncakeTransport


def main(seed: int) -> None:
    """A node's process."""
    pool = mmap.mmap(-1, PAGES * PAGE)
    fill(pool, seed)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pool))
    transport = MooncakeTransport("127.0.0.1")
    transport.register(base, PAGES * PAGE)
    serve(pool, transport, base, partial(use, transport))


if __name__ == "__main__":
    main(int(sys.argv[1]))
