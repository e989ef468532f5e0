"""Every interleaving of small models, by the production transition functions: `python -m checking --help` for more."""

from collections.abc import Callable
from functools import partial

import pytest
from checking.models import MODELS, Model, Trivial, decode, pair, prefill, room
from checking.search import explore
from checking.setting import EXPLORED, Setting


@pytest.mark.parametrize("name", MODELS)
def test_nothing_goes_wrong_in_any_order(name: str, record_property: Callable[[str, object], None]):
    explored = MODELS[name].explore()
    record_property(EXPLORED, f"{name}: {explored.states} states, {explored.transitions} transitions")


def test_a_model_that_has_become_trivial_is_noticed():
    with pytest.raises(Trivial):
        Model(partial(pair, 1, requests=1), states=1_000, answers=1).explore()


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(decode(2, aborts=1), id="decode"),
        pytest.param(decode(2, ring=True), id="decode by ring"),
        pytest.param(room(2), id="room"),
        pytest.param(prefill(2, requests=1, aborts=1, bad_writes=1), id="prefill"),
        pytest.param(pair(2, requests=1, aborts=(1, 0)), id="pair"),
    ],
)
def test_taking_alone_what_commutes_leads_to_the_same_ends(setting: Setting):
    reduced, full = explore(setting), explore(setting, reduce=False)
    assert reduced.states < full.states
    assert reduced.ends == full.ends
