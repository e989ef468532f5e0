"""What tokens depend on besides KV, and what is told with them."""

import msgspec
from mistakes.ranks import Patch

from router.stream import Stream
from tandem.core.events import Compiled
from tandem.core.inputs import Kind, Verdict
from tandem.core.rank import Rank
from tandem.core.untold import Untold


def a_rank_believes_its_own_compiler(patch: Patch) -> None:
    """The last rank queues a request when its own copy of the grammar is ready, not when rank 0 says so."""
    original = Rank.on

    def on(rank: Rank, event, now_ms: int):
        effects = original(rank, event, now_ms)
        own = isinstance(event, Compiled) and not rank.place.first
        if own and rank.scheduler.role.knows(event.room):
            rank.scheduler.role.on_verdict(Verdict(event.room, Kind.COMPILED))
        return effects

    patch.setattr(Rank, "on", on)


def an_answer_that_moves_is_taken_for_prompt(patch: Patch) -> None:
    """The next attempt does not know which of its tokens were generated: penalties and grammars begin anew."""
    remaining = Stream.remaining
    patch.setattr(Stream, "remaining", lambda stream: msgspec.structs.replace(remaining(stream), generated=0))


def log_probabilities_of_token_0_are_not_handed_over(patch: Patch) -> None:
    """Decode tells token 0 again without them: whose prefill group is lost never hears them."""
    patch.setattr(Untold, "of_first", lambda untold, room: None)


def log_probabilities_are_told_by_position_in_the_tick(patch: Patch) -> None:
    """What comes back is told with the next tokens that are told, whoever's they are."""

    def drawn(untold: Untold, tokens, told, knows) -> None:
        untold.waiting = [*getattr(untold, "waiting", []), *told]  # type: ignore[attr-defined]

    def take(untold: Untold, room, index, token):
        if index == 0 and room in untold._firsts:
            return untold._firsts[room]
        waiting = getattr(untold, "waiting", [])
        return waiting.pop(0) if waiting else None

    patch.setattr(Untold, "drawn", drawn)
    patch.setattr(Untold, "take", take)
    patch.setattr(Untold, "__len__", lambda untold: 1)


def log_probabilities_outlive_their_room(patch: Patch) -> None:
    """What was drawn for a request that has ended stays at rank 0."""
    patch.setattr(Untold, "forget", lambda untold, room: None)
