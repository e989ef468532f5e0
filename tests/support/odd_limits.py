"""Limits of which none is the default: whoever passes them on and forgets one is found out."""

from tandem.core.config import Limits

ODD_LIMITS = Limits(
    page_size=8,
    num_pages=16_777_216,
    chunked_prefill_size=33,
    max_prefill_tokens=65,
    async_depth=2,
    slot_rows=5,
    max_rooms=3,
    host_pages=0,
    prefix_cache=False,
    dynamic_chunking=True,
    transfer_consensus="ring",
    quiesce_ms=105,
    checksum_sample=3,
)
