"""A colocated group that computes requests anew when it has made room."""

from mistakes.ranks import Patch

from colocated.request import Request, State
from colocated.role import ColocatedRole
from tandem.core.plan import Emitted


def recomputation_tells_all_tokens_again(patch: Patch) -> None:
    """A request that has made room tells its whole answer once more when it has been computed anew."""
    original = ColocatedRole._go_on

    def go_on(role: ColocatedRole, request: Request, tokens):
        again = enumerate(request.generated) if tokens and request.state is State.FILLING else ()
        repeated = [Emitted(request.room, index, token) for index, token in again]
        return repeated + original(role, request, tokens)

    patch.setattr(ColocatedRole, "_go_on", go_on)


def recomputation_forgets_the_answer(patch: Patch) -> None:
    """A request that has made room computes its prompt anew, and nothing of what it has answered."""
    original = Request.chunk

    def chunk(request: Request, most: int, page_size: int):
        row = original(request, most, page_size)
        kept = tuple(0 if row.start + i >= len(request.work.prompt) else token for i, token in enumerate(row.tokens))
        return type(row)(row.room, kept, row.start, row.pages, row.samples, row.sampling)

    patch.setattr(Request, "chunk", chunk)


def a_flying_victim_makes_room(patch: Patch) -> None:
    """A victim's pages are given to others while its next token is being computed."""
    original = ColocatedRole._victims

    def victims(role: ColocatedRole):
        for victim in original(role):
            role._held.make_room(victim)
        return []

    patch.setattr(ColocatedRole, "_victims", victims)


def pages_go_while_a_chunk_flies(patch: Patch) -> None:
    """A request that is aborted gives its pages back at once, also those that a forward is filling."""
    original = ColocatedRole._end

    def end(role: ColocatedRole, request: Request, reason):
        notes = original(role, request, reason)
        role.pool.release(request.room)
        return notes

    patch.setattr(ColocatedRole, "_end", end)
