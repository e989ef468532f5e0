"""splitmix64 (Steele, Lea, Flood 2014): the constants and the finalizer, for the fake engine and the sampler."""

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
"""The step between two states: 2**64 divided by the golden ratio, made odd."""
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(x: int) -> int:
    """A bijection of the numbers from 0 to MASK in which every bit depends on every other."""
    x = ((x ^ (x >> 30)) * MIX_1) & MASK
    x = ((x ^ (x >> 27)) * MIX_2) & MASK
    return x ^ (x >> 31)
