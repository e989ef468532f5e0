"""Prefill and decode ranks in processes of their own: handshake over CURVE, grant, Mooncake writes, commits."""

from hands import Start, hand_over

from tandem.core.config import RoleName


def test_kv_is_handed_over_and_again_after_a_restart(start: Start) -> None:
    """A new prefill process takes over."""
    prefill, decode = start("p", RoleName.PREFILL), start("d", RoleName.DECODE)
    decode.tell("meet", prefill.member)
    assert prefill.heard() == ["opened", "d", 1, 0]
    assert decode.heard() == ["opened", "p", 1, 0]
    hand_over(prefill, decode)
    prefill.stop()
    successor = start("p", RoleName.PREFILL, 2)
    decode.tell("meet", successor.member)
    assert decode.heard() == ["lost", "p"]
    assert decode.heard() == ["opened", "p", 2, 0]
    assert successor.heard() == ["opened", "d", 1, 0]
    hand_over(successor, decode)


def test_a_decode_rank_that_restarts_is_served_anew(start: Start) -> None:
    prefill, decode = start("p", RoleName.PREFILL), start("d", RoleName.DECODE)
    decode.tell("meet", prefill.member)
    assert prefill.heard() == ["opened", "d", 1, 0]
    decode.stop()
    successor = start("d", RoleName.DECODE, 2)
    successor.tell("meet", prefill.member)
    assert prefill.heard() == ["lost", "d"]
    assert prefill.heard() == ["opened", "d", 2, 0]
    assert successor.heard() == ["opened", "p", 1, 0]
    hand_over(prefill, successor)
