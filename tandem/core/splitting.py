"""How a model's layers are cut into stages when nobody says: so that the slowest stage is as fast as can be.

A matrix of `w` weights that `rows` rows go through costs `w * max(rows, BALANCE_ROWS)`: up to so many rows the weights
take longer to read than to multiply with, and then their bytes are the price; beyond, the multiplications are.
The last stage also has the lm_head, which only sees the rows that are sampled from; the first has the embedding, of
which each row reads `hidden` weights. So for a role, with the rows of a usual tick,

    layer = layer_weights * max(rows, BALANCE_ROWS)
    first = hidden * rows * BALANCE_ROWS
    last  = head_weights * max(sampled, BALANCE_ROWS)

A role with several kinds of ticks adds them up. Attention is left out: what it costs depends on the traffic.
When decoding, a layer and the lm_head cost what they hold, and the lm_head of a small model with a large vocabulary
holds as much as many layers; a chunk of a prompt computes hundreds of rows in each layer, and one row of logits.
"""

from dataclasses import dataclass

from tandem.core.config import RoleName, check_parts

BALANCE_ROWS = 16
"""Rows at which a CPU multiplies as long as it reads. Measured: 0.5 TFLOP/s in bfloat16 beside 33 GB/s."""
CHUNK_ROWS = 512
DECODE_ROWS = 8


@dataclass(frozen=True, slots=True)
class Load:
    """Ticks of one kind: rows of each layer, and how many of them are sampled from."""

    ticks: int
    rows: int
    sampled: int


CHUNK, STEP = Load(1, CHUNK_ROWS, 1), Load(1, DECODE_ROWS, DECODE_ROWS)
LOADS = {
    RoleName.PREFILL: (CHUNK,),
    RoleName.DECODE: (STEP,),
    RoleName.COLOCATED: (CHUNK, Load(DECODE_ROWS, DECODE_ROWS, DECODE_ROWS)),  # 64 tokens for each chunk
}
"""What a stage of each role usually does."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How many weights a model has in each layer and in its lm_head, and how many a token reads of the embedding."""

    layers: int
    layer: int
    head: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one layer, and of what the first and the last stage have besides. In no unit: they are only compared."""

    layer: int
    first: int
    last: int

    def stages(self, partition: tuple[int, ...]) -> list[int]:
        """Of each stage."""
        costs = [layers * self.layer for layers in partition]
        costs[0] += self.first
        costs[-1] += self.last
        return costs


def costs_of(weights: Weights, role: RoleName) -> Costs:
    """What a group of this role has to compute."""
    loads = LOADS[role]
    return Costs(
        layer=weights.layer * sum(load.ticks * max(load.rows, BALANCE_ROWS) for load in loads),
        first=weights.hidden * sum(load.ticks * load.rows * BALANCE_ROWS for load in loads),
        last=weights.head * sum(load.ticks * max(load.sampled, BALANCE_ROWS) for load in loads),
    )


def split(weights: Weights, role: RoleName, parts: int) -> tuple[int, ...]:
    """Layers of each stage, at least one, so that the greatest cost of a stage is the least possible.

    Each layer goes to the stage that it makes the least expensive, the first of equals: as all layers cost the same,
    nothing is better. Raises ConfigError when there are fewer layers than stages.
    """
    check_parts(weights.layers, parts)
    costs = costs_of(weights, role)
    partition = [1] * parts
    loads = costs.stages(tuple(partition))
    for _ in range(weights.layers - parts):
        stage = loads.index(min(loads))
        partition[stage] += 1
        loads[stage] += costs.layer
    return tuple(partition)
