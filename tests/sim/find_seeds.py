"""Find the first seed at which each planted mistake shows: `python tests/sim/find_seeds.py [NAME ...]`, minutes each.

Every mistake must be found within MOST_SEEDS. What is printed goes into PLANTS of tests/support/plants.py.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from plants import PLANTS, Plant

from tandem.sim.run import simulate

MOST_SEEDS = 2_000


def main(names: list[str]) -> int:
    """Search for the named plants, or for all; 1 if one is not found."""
    found = [search(plant) for plant in PLANTS if not names or plant.name in names]
    return 0 if all(found) else 1


def search(plant: Plant) -> bool:
    """Print the first seed that finds a plant as recorded, and the first that finds it otherwise."""
    otherwise = ""
    with pytest.MonkeyPatch().context() as patch:
        plant.mistake(patch)
        for seed in range(MOST_SEEDS):
            try:
                simulate(seed, plant.variant)
            except Exception as error:  # noqa: BLE001  whatever it is, it was found
                text = f"seed {seed}, {type(error).__name__}: {error}"
                if plant.finds(error):
                    print(f"{plant.name}: {text}{otherwise}", flush=True)
                    return True
                otherwise = otherwise or f"\n    before that {text}"
    print(f"{plant.name}: not found in {MOST_SEEDS} seeds{otherwise}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
