"""How a ring forms: nobody is left out, nobody is mixed up, and the epoch is above all that came before."""

import msgspec
import pytest

from consensus.forming import Forming
from tandem.core.config import Limits
from tandem.core.errors import ConfigError
from tandem.core.ids import RankId
from tandem.core.messages import Formed, Join


def join(rank: int, incarnation: int = 1, boot_ms: int = 1_000, fingerprint: str = "f", **limits: int) -> Join:
    return Join(RankId(rank), incarnation, boot_ms, Limits(**limits), fingerprint)


@pytest.mark.parametrize("field", [field for field in Limits.__struct_fields__ if field != "num_pages"])
def test_ranks_that_were_told_different_limits_do_not_form_a_ring(field: str):
    forming = Forming(2)
    forming.on(join(0))
    with pytest.raises(ConfigError, match=f"{field.replace('_', '-')} is .* on rank 0"):
        forming.on(join(1, **{field: 1_000_003}))


def formed(*joins: Join) -> Formed:
    forming = Forming(len(joins))
    *_, last = (forming.on(each) for each in joins)
    assert last is not None
    return last


def test_a_ring_forms_when_the_last_rank_has_joined():
    forming = Forming(3)
    assert forming.missing == [0, 1, 2]
    assert forming.on(join(2)) is None
    assert forming.on(join(0)) is None
    assert forming.on(join(0)) is None, "saying it twice makes nobody present who is not"
    assert (forming.missing, forming.formed) == ([1], None)
    assert forming.on(join(1)) is not None
    assert forming.missing == []


def test_all_ranks_hold_what_the_smallest_can():
    assert formed(join(0, num_pages=64), join(1, num_pages=7), join(2, num_pages=100)).num_pages == 7


def test_everyone_hears_who_is_in_the_ring():
    assert formed(join(1, incarnation=11), join(0, incarnation=10)).incarnations == (10, 11)


def test_asking_again_gives_the_same_answer():
    forming = Forming(2)
    forming.on(join(0))
    first = forming.on(join(1))
    assert first == forming.on(join(1)) == forming.on(join(0)) == forming.formed


def test_a_process_that_started_again_replaces_its_former_self():
    forming = Forming(2)
    forming.on(join(1, incarnation=1, num_pages=1))
    forming.on(join(1, incarnation=2, num_pages=50))
    last = forming.on(join(0))
    assert last is not None
    assert (last.num_pages, last.incarnations) == (50, (1, 2))


@pytest.mark.parametrize("newer", [0, 1])
def test_the_epoch_rises_with_every_process_that_starts_anew(newer: int):
    before = [join(0), join(1)]
    after = [msgspec.structs.replace(each, boot_ms=each.boot_ms + (each.rank == newer)) for each in before]
    assert formed(*after).epoch > formed(*before).epoch > 0


@pytest.mark.parametrize("survivor", [0, 1])
def test_the_epoch_rises_although_the_clock_of_who_starts_anew_is_behind(survivor: int):
    before = formed(join(0), join(1)).epoch
    left = msgspec.structs.replace(join(survivor), known=before)
    assert formed(left, join(1 - survivor, incarnation=2, boot_ms=1)).epoch > before


def test_ranks_with_different_models_are_both_named():
    forming = Forming(2)
    forming.on(join(0, fingerprint="abc"))
    with pytest.raises(ConfigError, match=r"(?s)(?=.*rank 0 has fingerprint abc)(?=.*rank 1 has def)"):
        forming.on(join(1, fingerprint="def"))


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_the_ring_has_no_place_for_is_refused(rank: int):
    with pytest.raises(ConfigError, match="pp-size is 2"):
        Forming(2).on(join(rank))
