"""The laws of the fact lattice: what makes lost, doubled and reordered updates harmless."""

from hypothesis import given
from hypothesis import strategies as st

from consensus.facts import BOTTOM, join, meet, without_transfer
from tandem.core.messages import Fact, Progress

FACTS = st.builds(
    Fact, st.sampled_from(Progress), st.booleans(), st.booleans(), st.integers(0, 3), st.booleans(), st.booleans()
)


@given(FACTS, FACTS)
def test_the_order_of_learning_does_not_matter(a: Fact, b: Fact):
    assert join(a, b) == join(b, a)


@given(FACTS, FACTS, FACTS)
def test_the_grouping_of_learning_does_not_matter(a: Fact, b: Fact, c: Fact):
    assert join(join(a, b), c) == join(a, join(b, c))


@given(FACTS)
def test_learning_twice_changes_nothing(a: Fact):
    assert join(a, a) == a
    assert join(a, BOTTOM) == a


@given(FACTS, FACTS)
def test_what_is_known_stays_known(a: Fact, b: Fact):
    learned = join(a, b)
    assert learned.progress >= a.progress
    assert learned.failed >= a.failed
    assert learned.quiet >= a.quiet
    assert learned.backups >= a.backups


@given(st.lists(FACTS, min_size=1, max_size=5), st.randoms())
def test_the_order_of_ranks_does_not_matter(facts: list[Fact], rng):
    shuffled = rng.sample(facts, len(facts))
    assert meet(facts) == meet(shuffled)


@given(st.lists(FACTS, min_size=1, max_size=5), st.integers(0, 4), FACTS)
def test_when_one_rank_learns_the_group_never_forgets(facts: list[Fact], which: int, news: Fact):
    which %= len(facts)
    before = meet(facts)
    after = meet([join(fact, news) if index == which else fact for index, fact in enumerate(facts)])
    assert join(before, after) == after


def test_good_news_needs_everyone():
    assert meet([Fact(Progress.SUCCESS), Fact(Progress.TRANSFERRING)]).progress is Progress.TRANSFERRING


def test_one_failure_fails_everyone():
    assert meet([Fact(Progress.SUCCESS), Fact(failed=True)]).failed


def test_memory_is_freed_only_when_everyone_is_quiet():
    assert not meet([Fact(quiet=True), Fact()]).quiet
    assert meet([Fact(quiet=True), Fact(quiet=True)]).quiet


def test_a_fence_is_needed_for_those_only_that_are_not_quiet():
    assert meet([Fact(quiet=True), Fact(fenced=True)]).fenced
    assert not meet([Fact(quiet=True), Fact(quiet=True)]).fenced
    assert not meet([Fact(), Fact(fenced=True)]).fenced


@given(FACTS, FACTS, FACTS)
def test_the_grouping_of_ranks_does_not_matter(a: Fact, b: Fact, c: Fact):
    assert meet([meet([a, b]), c]) == meet([a, meet([b, c])]) == meet([a, b, c])
    assert meet([a]) == a


def test_a_rank_that_has_no_record_is_bootstrapping():
    assert meet([Fact(Progress.SUCCESS, quiet=True), BOTTOM]) == Fact(Progress.BOOTSTRAPPING)


def test_a_backup_is_done_when_everyone_has_it():
    assert meet([Fact(backups=2), Fact(backups=1)]).backups == 1
    assert meet([Fact(backups=2), BOTTOM]).backups == 0


@given(FACTS, FACTS)
def test_where_votes_agree_on_the_transfer_the_store_hears_of_the_rest(a: Fact, b: Fact):
    said = without_transfer(a)
    assert said.progress <= Progress.WAITING_FOR_INPUT
    assert (said.failed, said.quiet) == (False, False)
    assert said.backups == a.backups
    assert join(said, without_transfer(join(a, b))) == without_transfer(join(a, b)), "it only grows, as the whole does"
