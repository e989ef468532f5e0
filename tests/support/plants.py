"""Known mistakes, planted one at a time: the simulator must find each. One that it cannot find is a hole in its oracle.

Each has a recorded seed, which fails as recorded with the mistake and passes without it. `tests/sim/find_seeds.py`
finds seeds anew after a change of what seeds stand for. Mistakes that random runs hardly ever meet are planted in
`tests/sim/test_rare_orders.py`, where what shows them is brought about by hand.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mistakes import (
    alone,
    answers,
    cache,
    epochs,
    fences,
    memory,
    migration,
    orders,
    polls,
    replication,
    retraction,
    rooms,
    scheduling,
    transfer,
    verdicts,
)
from mistakes.ranks import Patch

from tandem.core.errors import Divergence, IllegalTransition
from tandem.sim.case import Variant
from tandem.sim.client import WrongAnswer
from tandem.sim.ledger import WrongContent
from tandem.sim.oracle import StrayAccess
from tandem.sim.orders import Disobeyed
from tandem.sim.router import Misplaced
from tandem.sim.run import Needless, Stalled
from tandem.sim.ticks import Flooded


@dataclass(frozen=True)
class Plant:
    """A mistake, what finds it (the exception and a phrase of what it says), and the recorded seed."""

    mistake: Callable[[Patch], None]
    found_as: type[Exception]
    saying: str
    seed: int
    pairs: int | None = None  # of groups, if it takes so many

    @property
    def variant(self) -> Variant:
        """What to simulate."""
        return Variant(pairs=self.pairs)

    @property
    def name(self) -> str:
        """Of the switch."""
        return self.mistake.__name__

    def finds(self, error: Exception) -> bool:
        """Whether this is how the mistake shows."""
        return isinstance(error, self.found_as) and self.saying in str(error)


PLANTS = (
    Plant(memory.free_on_failed, StrayAccess, "given them away", 4),
    Plant(memory.ignore_quarantine, StrayAccess, "written", 0),
    Plant(memory.quiet_while_writes_are_posted, StrayAccess, "read by a write", 0),
    Plant(memory.quiet_while_a_forward_runs, StrayAccess, "used by tick", 60),
    Plant(memory.quiet_when_anyone_is, StrayAccess, "given them away", 0),
    Plant(memory.pages_go_at_the_end_of_a_running_request, StrayAccess, "used by tick", 119),
    Plant(transfer.join_before_the_verdict, WrongContent, "first row", 0),
    Plant(transfer.commit_before_the_write_has_ended, WrongContent, "first row", 0),
    Plant(transfer.post_before_the_layer_ran, WrongContent, "first row", 2),
    Plant(transfer.one_commit_is_enough, WrongContent, "first row", 2),
    Plant(transfer.failed_writes_count_as_sent, WrongContent, "first row", 21),
    Plant(transfer.unsettled_writes_count_as_ended, StrayAccess, "given them away", 8),
    Plant(fences.fenced_when_anyone_is, StrayAccess, "given them away", 11),
    Plant(fences.fenced_is_told_before_it_is_done, StrayAccess, "given them away", 11),
    Plant(fences.nobody_is_cut_off, Divergence, "not at rest", 0),
    Plant(fences.a_group_is_cut_off_once, Divergence, "not at rest", 45),
    Plant(fences.quiet_is_said_after_a_fence_of_our_own, StrayAccess, "given them away", 44),
    Plant(fences.the_same_instance_settles_a_write, StrayAccess, "given them away", 441),
    Plant(fences.a_fence_of_one_group_frees_rooms_of_another, StrayAccess, "given them away", 185, pairs=2),
    Plant(fences.a_mismatch_counts_as_landed, WrongContent, "first row", 46),
    Plant(fences.blocks_are_not_compared, WrongContent, "first row", 46),
    Plant(fences.blocks_are_compared_with_other_pages, WrongAnswer, "ended with kv_checksum", 30),
    Plant(fences.corrupted_when_everyone_sees_it, Stalled, "not answered", 666),
    Plant(verdicts.outcome_decided_locally, Divergence, "digest", 2),
    Plant(verdicts.re_poll_after_the_verdict, Divergence, "digest", 586),
    Plant(verdicts.failure_is_handled_where_it_is_seen, Divergence, "digest", 11),
    Plant(verdicts.metadata_gate_at_apply_only, Divergence, "digest", 73),
    Plant(verdicts.local_deferred_release, Divergence, "digest", 6),
    Plant(verdicts.admitted_when_one_rank_is_ready, IllegalTransition, "cannot take launched", 1),
    Plant(verdicts.a_no_is_not_heard, KeyError, "", 0),
    Plant(verdicts.quiet_is_concluded_from_progress, IllegalTransition, "", 0),
    Plant(verdicts.failure_not_forwarded, Stalled, "had not heard of the end", 16),
    Plant(verdicts.quiet_is_not_told_to_the_peer, Needless, "when all was at rest", 41),
    Plant(polls.quiet_is_asked_alone, Stalled, "not answered", 53),
    Plant(polls.answered_from_another_rooms_fact, WrongContent, "first row", 9),
    Plant(polls.a_poll_is_not_asked_again, Stalled, "not answered", 5),
    Plant(rooms.room_reuse_without_attempt, Stalled, "not answered", 0),
    Plant(rooms.facts_are_kept_by_request, IllegalTransition, "cannot take launched", 128),
    Plant(rooms.an_abort_ends_every_room_that_begins_alike, WrongAnswer, "has no reason", 167),
    Plant(rooms.ended_rooms_are_remembered_too_late, WrongAnswer, "after its last word", 68),
    Plant(replication.positional_lists, WrongAnswer, "the reference has", 124),
    Plant(replication.set_iteration_order, Divergence, "digest", 0),
    Plant(replication.own_clock, Divergence, "digest", 1),
    Plant(replication.own_clock_for_priority, Divergence, "digest", 4),
    Plant(replication.each_rank_its_own_capacity, Divergence, "digest", 0),
    Plant(replication.harvests_newest_first, IllegalTransition, "the oldest in flight", 4),
    Plant(replication.a_verdict_is_given_again, Divergence, "a second time", 0),
    Plant(replication.the_wake_time_stays_in_the_past, Flooded, "spins", 0),
    Plant(scheduling.a_busy_slot_may_be_named, StrayAccess, "used by tick", 2),
    Plant(scheduling.nobody_makes_room, Stalled, "not answered", 0),
    Plant(scheduling.a_blocked_request_is_forgotten, Stalled, "not answered", 0),
    Plant(cache.a_shared_page_is_computed_again, StrayAccess, "written by tick", 0),
    Plant(cache.a_shared_page_is_granted, StrayAccess, "are written for", 2),
    Plant(cache.salts_are_ignored, WrongContent, "salt", 0),
    Plant(cache.a_hit_may_cover_the_whole_prompt, WrongAnswer, "came when all was at rest", 272),
    Plant(cache.what_was_never_computed_is_published, WrongContent, "None wrote it", 46),
    Plant(cache.what_has_not_landed_is_published, StrayAccess, "are written for", 0),
    Plant(cache.a_flush_is_ignored, WrongContent, "before a flush", 116),
    Plant(cache.a_flush_leaves_what_is_used, WrongContent, "before a flush", 116),
    Plant(cache.a_flush_frees_what_is_still_found, IllegalTransition, "not conserved", 3),
    Plant(cache.a_used_prefix_is_evicted, StrayAccess, "given them away", 164),
    Plant(cache.a_share_stays_locked, IllegalTransition, "lost or doubled", 0),
    Plant(retraction.a_backup_is_not_awaited, StrayAccess, "used by a backup", 119),
    Plant(retraction.any_backup_will_do, StrayAccess, "used by a backup", 410),
    Plant(retraction.a_resumed_request_has_a_stale_token, WrongContent, "", 119),
    Plant(retraction.a_resumed_request_begins_its_answer_again, WrongAnswer, "told it before", 119),
    Plant(retraction.host_pages_go_during_their_backup, StrayAccess, "on the host", 1670),
    Plant(retraction.pages_go_during_their_backup, StrayAccess, "used by a backup", 1670),
    Plant(retraction.restored_after_the_forward, WrongContent, "", 119),
    Plant(retraction.a_flying_request_is_retracted, IllegalTransition, "harvested", 119),
    Plant(retraction.an_eviction_is_not_told, Stalled, "not answered", 0),
    Plant(orders.requests_are_admitted_during_a_pause, Disobeyed, "paused", 18),
    Plant(orders.a_pause_holds_one_slot_only, Disobeyed, "launched", 18),
    Plant(orders.a_drain_refuses_what_the_group_gave_up, WrongAnswer, "ended with draining", 2476),
    Plant(orders.a_drain_refuses_what_is_still_leaving, WrongAnswer, "ended with draining", 1304),
    Plant(orders.a_pause_stops_the_back_off, Flooded, "spins", 40),
    Plant(orders.knobs_are_turned_on_arrival, Divergence, "digest", 4),
    Plant(alone.recomputation_tells_all_tokens_again, WrongAnswer, "told it before", 72),
    Plant(alone.recomputation_forgets_the_answer, WrongContent, "", 72),
    Plant(alone.a_flying_victim_makes_room, StrayAccess, "used by tick", 104),
    Plant(alone.pages_go_while_a_chunk_flies, StrayAccess, "used by tick", 57),
    Plant(epochs.a_survivor_keeps_its_rooms, Divergence, "frame of tick", 20),
    Plant(epochs.a_message_of_an_old_epoch_is_taken, Divergence, "", 70),
    Plant(epochs.the_dead_are_taken_for_quiet, StrayAccess, "given them away", 6),
    Plant(epochs.a_zombies_write_lands, StrayAccess, "given them away", 6),
    Plant(migration.delivered_tokens_are_not_part_of_the_next_prompt, WrongAnswer, "the reference has", 0),
    Plant(migration.a_request_that_moves_begins_its_answer_again, WrongAnswer, "", 0),
    Plant(migration.a_lost_group_is_chosen_again, Misplaced, "taken its leave", 6),
    Plant(migration.a_request_takes_its_healthy_group_along, Misplaced, "all groups are there", 19),
    Plant(migration.the_next_attempt_has_the_same_room, Stalled, "not answered", 0),
    Plant(answers.a_rank_believes_its_own_compiler, IllegalTransition, "cannot take compiled", 11),
    Plant(answers.an_answer_that_moves_is_taken_for_prompt, WrongContent, "the reference has", 11),
    Plant(answers.log_probabilities_of_token_0_are_not_handed_over, WrongAnswer, "log-probabilities", 0),
    Plant(answers.log_probabilities_are_told_by_position_in_the_tick, WrongAnswer, "log-probabilities", 0),
    Plant(answers.log_probabilities_outlive_their_room, Divergence, "not at rest", 0),
)
"""The switchboard."""
