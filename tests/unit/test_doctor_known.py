"""The known answer: what one end writes is what the other compares, to the byte."""

import ctypes
from itertools import pairwise

import pytest

from tandem.core.ids import LayerId, PageId
from tandem.doctor.known import HALF, IN, PAGE_BYTES, PATTERN, SPREAD, Known, content, places

SEED, OTHER = b"one seed", b"another seed"


@pytest.fixture(scope="module")
def sender() -> Known:
    return Known(SEED)


def copy(sender: Known, receiver: Known) -> None:
    """What a transport does."""
    for source, target, length in sender.scattered(SEED, receiver.region):
        ctypes.memmove(target, source, length)


def spoil(receiver: Known, page: int, byte: int, value: int) -> None:
    ctypes.memset(receiver.region.address(IN, PageId(page)) + byte, value, 1)


def test_a_pattern_that_was_copied_is_right(sender: Known):
    receiver = Known(OTHER)
    assert "bytes are wrong" in receiver.compare(SEED), "nothing was copied yet"
    copy(sender, receiver)
    assert receiver.compare(SEED) == ""
    assert "bytes are wrong" in receiver.compare(OTHER)


def test_one_wrong_byte_is_named(sender: Known):
    receiver, page = Known(OTHER), places(SEED)[7]
    copy(sender, receiver)
    right = content(SEED)[7 * PAGE_BYTES + 5]
    spoil(receiver, page, 5, right ^ 0xFF)
    said = f"1 of {SPREAD * PAGE_BYTES} bytes are wrong, first byte 5 of page {page}: "
    assert receiver.compare(SEED) == f"{said}{right ^ 0xFF:#04x} instead of {right:#04x}"


def test_a_byte_that_nobody_should_have_written_is_wrong(sender: Known):
    receiver = Known(OTHER)
    copy(sender, receiver)
    between = next(page for page in range(SPREAD) if page not in places(SEED))
    spoil(receiver, between, 4095, 1)
    assert f"first byte 4095 of page {between}: 0x01 instead of 0x00" in receiver.compare(SEED)


def test_the_pattern_is_four_mib_in_blocks_of_their_own(sender: Known):
    blocks = sender.scattered(SEED, sender.region)
    assert sum(length for _, _, length in blocks) == 4 << 20
    assert len(set(places(SEED))) == PATTERN == len(blocks)
    assert len(set(content(SEED)[:PAGE_BYTES])) > 200, "no byte that memory holds by accident"


def test_large_blocks_fill_the_other_half_once(sender: Known):
    receiver = Known(OTHER)
    start, end = receiver.region.address(IN, PageId(0)), receiver.region.address(LayerId(2), PageId(0))
    targets = sorted((target, target + length) for _, target, length in sender.large(receiver.region))
    assert targets[0][0] == start
    assert targets[-1][1] == end == start + HALF * PAGE_BYTES
    assert all(before[1] == after[0] for before, after in pairwise(targets))
