"""What the benchmark of transports makes of what it measured, where its blocks lie, and what it compares with."""

import ctypes
import random
import socket
import threading

import pytest

from bench import isolation
from bench.ends import MOONCAKE, SHM
from bench.movers import MEMCPY, PLAIN, RAW, columns, copy_all
from bench.plain_socket import Plain, receive
from bench.run import BENCHES
from bench.transfer import BLOCK_BYTES, LAYOUTS, MIB, WRITE_BYTES, Case, Cost, median, rows_of, size_of
from kvtransfer.transports.blocks import coalesce

POOL_BYTES = 64 * MIB


def test_it_can_be_run_by_name():
    assert "transfer" in BENCHES


# where blocks lie


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_bytes", BLOCK_BYTES)
def test_a_write_moves_all_its_bytes_within_the_pool_and_none_twice(layout: str, block_bytes: int):
    blocks = LAYOUTS[layout](random.Random(1), block_bytes, POOL_BYTES)
    assert sum(length for _, _, length in blocks) == WRITE_BYTES
    for end in zip(*((source, destination) for source, destination, _ in blocks), strict=True):
        assert len(set(end)) == len(blocks)
        assert min(end) >= 0
        assert max(end) + block_bytes <= POOL_BYTES
        assert all(place % block_bytes == 0 for place in end)


def test_contiguous_blocks_become_one_and_scattered_ones_hardly_fewer():
    rng = random.Random(1)
    merged = {layout: len(coalesce(blocks_of(rng, 4096, POOL_BYTES))) for layout, blocks_of in LAYOUTS.items()}
    count = WRITE_BYTES // 4096
    assert merged["contiguous"] == 1
    assert 0.95 * count < merged["scattered"] <= count


def test_writes_lie_elsewhere_each_time():
    rng = random.Random(1)
    for blocks_of in LAYOUTS.values():
        assert blocks_of(rng, 65536) != blocks_of(rng, 65536)


# what moves them


def test_memcpy_copies_the_blocks_and_nothing_else():
    source, target = bytearray(range(100)), bytearray(100)
    here, there = (ctypes.addressof(ctypes.c_char.from_buffer(pool)) for pool in (source, target))
    copy_all([(here + 10, there + 50, 5), (here + 90, there, 10)])
    assert target == bytes(range(90, 100)) + bytes(40) + bytes(range(10, 15)) + bytes(45)


def test_a_raw_call_gets_columns():
    assert columns([(1, 2, 3), (4, 5, 6)]) == [[1, 4], [2, 5], [3, 6]]


def test_a_plain_socket_carries_blocks_to_their_places():
    source, target = bytearray(random.Random(2).randbytes(MIB)), bytearray(MIB)
    with socket.create_server(("127.0.0.1", 0)) as server:
        plain = Plain("127.0.0.1", server.getsockname()[1], memoryview(source))
        thread = threading.Thread(target=lambda: receive(server.accept()[0], memoryview(target)))
        thread.start()
        plain.write([(0, 500_000, 300_000), (900_000, 7, 1)])
        plain.write([(1, 2, 3)])
        plain.close()
        thread.join()
    expected = bytearray(MIB)
    expected[500_000:800_000], expected[7], expected[2:5] = source[:300_000], source[900_000], source[1:4]
    assert target == expected


# what is made of it


def case(block_bytes: int, shm_us: float, mooncake_us: float) -> Case:
    walls = {SHM: shm_us, MEMCPY: 1000.0, MOONCAKE: mooncake_us, RAW: 9000.0, PLAIN: 4500.0}
    return Case("scattered", block_bytes, {name: Cost(wall, 2 * wall) for name, wall in walls.items()})


def test_a_transport_is_judged_by_the_least_that_its_bytes_could_cost():
    shm, shm_cpu, mooncake, beside_socket, mooncake_cpu = rows_of(case(65536, 1250.0, 12000.0))
    assert (shm.ratio, shm.bar, shm.holds) == (pytest.approx(0.8), ">= 0.7", True)
    assert (mooncake.ratio, mooncake.bar, mooncake.holds) == (pytest.approx(0.75), ">= 0.9", False)
    assert (beside_socket.ratio, beside_socket.holds) == (pytest.approx(0.375), None)
    assert shm.value == pytest.approx(WRITE_BYTES / 1250 / 1000), "bytes in a microsecond are megabytes in a second"
    assert shm_cpu.value == pytest.approx(2 * 1250 / 32), "for each of 32 MiB"
    assert mooncake_cpu.ratio == pytest.approx(12 / 9)


def test_small_blocks_are_reported_for_shm_only():
    shm, _, mooncake, *_ = rows_of(case(4096, 5000.0, 9000.0))
    assert (shm.bar, shm.holds) == ("", None)
    assert mooncake.holds is True


def test_medians_are_of_each_figure_by_itself():
    assert median([Cost(1, 30), Cost(2, 10), Cost(9, 20)]) == Cost(2, 20)


def test_sizes_are_named_in_the_largest_unit():
    assert [size_of(length) for length in BLOCK_BYTES] == ["4 KiB", "64 KiB", "256 KiB", "1 MiB", "16 MiB"]


def test_the_worst_write_beside_a_sick_peer_counts_and_not_the_usual_one():
    order = isolation.Order(SHM, isolation.STOPPED, careless=False, seconds=1)
    row = isolation.row_of(order, isolation.Found(before=[1, 2, 9], during=[2, 2, 2, 103]))
    assert (row.value, row.reference_value, row.holds) == (101, 2, False)
    assert isolation.row_of(order, isolation.Found(before=[1, 2, 9], during=[2, 101])).holds is True


def test_what_tandem_does_not_do_is_only_reported():
    order = isolation.Order(MOONCAKE, isolation.SILENT, careless=True, seconds=1)
    row = isolation.row_of(order, isolation.Found(before=[1], during=[60_000]))
    assert (row.value, row.bar, row.holds) == (59_999, "", None)
