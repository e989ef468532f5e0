"""The classic way to agree across a pipeline, emulated: a two-pass vote bound to the slots of the scheduler's loop.

It is how SGLang's loops for disaggregated prefill and decode agree (`event_loop_pp_disagg_*` in scheduler_pp_mixin.py;
its latency is reported in sgl-project/sglang issues #34815 and #38206). Every iteration of a rank's loop belongs to one
of P slots. In the first pass, iteration i of rank r intersects what it has observed with what iteration i of rank r - 1
sent. The last rank sends the result to rank 0, which takes it at the end of its iteration before that slot's next turn.
In the second pass the result goes on by one rank per iteration, and each rank applies it as it passes.
An iteration is one forward and one hop, and rank r runs its i-th one step after rank r - 1. CPU time is not counted.
"""

from typing import NamedTuple


class SlotVote(NamedTuple):
    """Ranks of a ring, and the microseconds of one iteration of each."""

    ranks: int
    step_us: int

    def applied_us(self, rank: int, observed_us: int) -> int:
        """When all ranks have applied what `rank`, the last of them to know, observed at that time."""
        first = max(0, -(-observed_us // self.step_us) - rank)  # the first vote that this rank's yes is in
        return (first + 2 * self.ranks - 1) * self.step_us
