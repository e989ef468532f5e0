"""Explores models: those of `make test`, or larger ones, and says how many states there are."""

import argparse
import time

from checking.models import MODELS, large


def main() -> None:
    """Ends with a traceback and the shortest story when anything goes wrong."""
    parser = argparse.ArgumentParser(prog="python -m checking", description=__doc__)
    parser.add_argument("--ranks", type=int, help="explore larger models of this many ranks instead")
    parser.add_argument("--only", default="", help="explore the models whose name contains this")
    parser.add_argument("--every-order", action="store_true", help="try also in every order what commutes")
    options = parser.parse_args()
    models = large(options.ranks) if options.ranks else MODELS
    for name, model in models.items():
        if options.only in name:
            begun_s = time.process_time()
            explored = model.explore(reduce=not options.every_order)
            took_s = time.process_time() - begun_s
            print(f"{name}: {explored.states} states, {explored.transitions} transitions, {took_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
