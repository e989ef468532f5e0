"""The page pool and the host pages: real addresses, exact copies, nothing committed until it is touched."""

import ctypes
import mmap
import os
import resource
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId, PageId
from tandem.engine.memory import HostPages, PageMemory, PlainMemory

LAYERS = (LayerId(3), LayerId(5))
PAGES, BLOCK = 7, 48


SharedMemory = partial(PageMemory, shared=True)


@pytest.fixture(params=[PageMemory, SharedMemory, PlainMemory], ids=["own", "shared", "plain"])
def memory(request: pytest.FixtureRequest) -> PageMemory | PlainMemory:
    return request.param(LAYERS, PAGES, BLOCK)


def test_every_byte_belongs_to_exactly_one_block(memory: PageMemory | PlainMemory) -> None:
    mark = 0
    for layer in range(*LAYERS):
        for page in range(PAGES):
            mark += 1
            block = memory.block(LayerId(layer), PageId(page))
            assert len(block) == BLOCK
            block[:] = bytes([mark]) * BLOCK
    assert bytes(memory.buffer) == b"".join(bytes([each]) * BLOCK for each in range(1, mark + 1))


def test_blocks_lie_where_the_region_says(memory: PageMemory | PlainMemory) -> None:
    spots = [(LayerId(layer), PageId(page)) for layer in range(*LAYERS) for page in range(PAGES)]
    addresses = [memory.region.address(*spot) for spot in spots]
    assert addresses[0] == memory.region.base
    assert [b - a for a, b in pairwise(addresses)] == [BLOCK] * (len(spots) - 1)


@pytest.mark.parametrize("make", [PageMemory, SharedMemory], ids=["own", "shared"])
def test_the_region_is_a_real_address(make: partial[PageMemory]) -> None:
    memory = make(LAYERS, PAGES, BLOCK)
    assert memory.region.base % resource.getpagesize() == 0
    memory.block(LayerId(4), PageId(2))[:5] = b"hello"
    assert ctypes.string_at(memory.region.address(LayerId(4), PageId(2)), 5) == b"hello"


@pytest.mark.parametrize("spot", [(2, 0), (5, 0), (3, -1), (3, PAGES)])
def test_a_block_that_is_not_there_is_an_error(memory: PageMemory | PlainMemory, spot: tuple[int, int]) -> None:
    with pytest.raises(IndexError):
        memory.block(LayerId(spot[0]), PageId(spot[1]))


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("make", [PageMemory, SharedMemory], ids=["own", "shared"])
def test_a_large_pool_costs_nothing_until_it_is_touched(make: partial[PageMemory]) -> None:
    before = resident_bytes()
    memory = make(LAYERS, 4096, 128 * 1024)  # 1 GiB
    memory.block(LayerId(4), PageId(4095))[:] = bytes(128 * 1024)
    assert resident_bytes() - before < 64 * 2**20
    memory.close()


def test_close_refuses_while_somebody_looks() -> None:
    memory = PageMemory(LAYERS, PAGES, BLOCK)
    view = np.frombuffer(memory.buffer, np.uint8)
    with pytest.raises(BufferError):
        memory.close()
    assert view[0] == 0
    del view
    memory.close()
    with pytest.raises(ValueError):
        memory.block(LayerId(3), PageId(0))


@pytest.mark.parametrize("make", [PageMemory, SharedMemory], ids=["own", "shared"])
def test_a_pool_beyond_the_machine_is_the_operators_mistake(make: partial[PageMemory]) -> None:
    for pages in (0, 2**62):
        with pytest.raises(ConfigError, match="num-pages"):
            make(LAYERS, pages, BLOCK)


def test_others_read_a_shared_pool_as_it_changes_and_can_do_nothing_else() -> None:
    memory = SharedMemory(LAYERS, PAGES, BLOCK)
    assert memory.memfd is not None
    there = mmap.mmap(memory.memfd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    start = memory.region.address(LayerId(4), PageId(2)) - memory.region.base
    memory.block(LayerId(4), PageId(2))[:5] = b"hello"
    assert there[start : start + 5] == b"hello"
    with pytest.raises(PermissionError):
        mmap.mmap(memory.memfd, 0)
    with pytest.raises(PermissionError):
        os.pwrite(memory.memfd, b"x", 0)
    for length in (0, 2 * len(there)):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.memfd, length)
    memory.close()
    with pytest.raises(OSError):
        os.fstat(memory.memfd)


def test_a_pool_that_is_not_shared_is_nobody_elses() -> None:
    assert PageMemory(LAYERS, PAGES, BLOCK).memfd is None
    assert PlainMemory(LAYERS, PAGES, BLOCK).memfd is None


# host pages


def pages(*numbers: int) -> tuple[PageId, ...]:
    return tuple(PageId(number) for number in numbers)


def fill(memory: PageMemory | PlainMemory, seed: int) -> None:
    memory.buffer[:] = np.random.default_rng(seed).bytes(len(memory.buffer))


def blocks(memory: PageMemory | PlainMemory, *numbers: int) -> list[bytes]:
    return [bytes(memory.block(LayerId(layer), page)) for page in pages(*numbers) for layer in range(*LAYERS)]


def test_saved_pages_come_back_whole_into_other_pages(memory: PageMemory | PlainMemory) -> None:
    host = HostPages(memory, 4)
    fill(memory, 1)
    saved = blocks(memory, 5, 0, 3)
    host.save(pages(5, 0, 3), pages(3, 0, 2))
    fill(memory, 2)
    others = blocks(memory, 0, 2, 4, 5)
    host.load(pages(3, 0, 2), pages(1, 6, 3))
    assert blocks(memory, 1, 6, 3) == saved
    assert blocks(memory, 0, 2, 4, 5) == others, "no other page is touched"


def test_host_pages_are_saved_to_anew(memory: PageMemory | PlainMemory) -> None:
    host = HostPages(memory, 2)
    for seed in (1, 2):
        fill(memory, seed)
        host.save(pages(4, 2), pages(0, 1))
    latest = blocks(memory, 4, 2)
    fill(memory, 3)
    host.load(pages(0, 1), pages(0, 1))
    assert blocks(memory, 0, 1) == latest


def test_a_host_page_that_is_not_there_is_an_error(memory: PageMemory | PlainMemory) -> None:
    for count, page in ((2, 2), (2, -1), (0, 0)):
        with pytest.raises(IndexError, match="no host page"):
            HostPages(memory, count).save(pages(0), pages(page))


def test_pages_without_a_place_are_an_error(memory: PageMemory | PlainMemory) -> None:
    with pytest.raises(ValueError):
        HostPages(memory, 2).save(pages(0, 1), pages(0))


def test_many_host_pages_cost_nothing_until_they_are_used() -> None:
    memory = PageMemory(LAYERS, 2, 128 * 1024)
    before = resident_bytes()
    host = HostPages(memory, 4096)  # 1 GiB
    host.save(pages(1), pages(4095))
    assert resident_bytes() - before < 64 * 2**20


def test_host_pages_beyond_the_machine_are_the_operators_mistake() -> None:
    with pytest.raises(ConfigError, match="host-pages"):
        HostPages(PlainMemory(LAYERS, PAGES, BLOCK), 2**62)
