"""A router that loses groups, and what becomes of its requests."""

import msgspec
from mistakes.ranks import Patch

from router.attempt import Attempt
from router.membership import Lost, Membership
from router.placement import Route
from router.requests import Requests
from router.stream import Stream
from tandem.core.ids import Room
from tandem.core.requests import Reason


def delivered_tokens_are_not_part_of_the_next_prompt(patch: Patch) -> None:
    """The next attempt computes what is left of the answer from the prompt alone."""
    remaining = Stream.remaining
    patch.setattr(
        Stream, "remaining", lambda stream: msgspec.structs.replace(remaining(stream), prompt=stream.work.prompt)
    )


def a_request_that_moves_begins_its_answer_again(patch: Patch) -> None:
    """The next attempt computes the whole answer, and all of it is delivered after what came before."""
    go_on = Stream.go_on

    def again(stream: Stream, route: Route) -> None:
        go_on(stream, route)
        whole = msgspec.structs.replace(stream.work, room=stream.attempt.room)
        stream.attempt = Attempt(whole, route, stream.count)

    patch.setattr(Stream, "go_on", again)


def a_lost_group_is_chosen_again(patch: Patch) -> None:
    """A group that has said farewell is lost to its requests, and takes others."""
    patch.setattr(
        Membership, "on_lost", lambda membership, group, cause, *, crashed=True: [Lost(group, cause, crashed)]
    )


def a_request_takes_its_healthy_group_along(patch: Patch) -> None:
    """Who cannot go on tells both of its groups that the group is lost, and hears the healthy one say so of itself."""
    close = Requests._close

    def lose(requests: Requests, exchange, cancel) -> None:
        close(requests, exchange, Reason.GROUP_LOST if cancel is Reason.PEER_ENDED else cancel)

    patch.setattr(Requests, "_close", lose)


def the_next_attempt_has_the_same_room(patch: Patch) -> None:
    """It is the same request, after all."""
    remaining = Stream.remaining

    def same(stream: Stream):
        room = Room(stream.attempt.room.rid, stream.attempt.room.attempt)
        return msgspec.structs.replace(remaining(stream), room=room)

    patch.setattr(Stream, "remaining", same)


def an_old_attempts_tokens_are_taken(patch: Patch) -> None:
    """What a group says is known by its request."""
    on_token = Stream.on_token

    def take(stream: Stream, role, token):
        return on_token(stream, role, msgspec.structs.replace(token, room=stream.attempt.room))

    patch.setattr(Stream, "on_token", take)
