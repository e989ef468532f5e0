"""The prefix cache: what is shared, with whom, and for how long."""

from mistakes.ranks import Patch

from decode.admission import Admission
from decode.holdings import Holdings
from decode.intake import State
from decode.role import DecodeRole
from prefill.role import PrefillRole
from tandem.core.pages import PagePool
from tandem.core.prefixes import PrefixTree


def a_shared_page_is_computed_again(patch: Patch) -> None:
    """Prefill begins one token before the end of what it shares, and writes into the shared page."""
    original = PrefillRole._allocate

    def allocate(role: PrefillRole, request):
        given = original(role, request)
        request.scheduled = max(0, request.scheduled - 1)
        return given

    patch.setattr(PrefillRole, "_allocate", allocate)


def a_shared_page_is_granted(patch: Patch) -> None:
    """Decode lets prefill write the whole prompt, also the pages that it shares."""
    original = Admission.on_outcome

    def on_outcome(admission: Admission, request, yes: bool, now_ms: int):
        request.hit = 0
        return original(admission, request, yes, now_ms)

    patch.setattr(Admission, "on_outcome", on_outcome)


def salts_are_ignored(patch: Patch) -> None:
    """Whoever has the same tokens shares the same pages, whatever their salts are."""
    reuse, publish = PagePool.reuse, PagePool.publish
    patch.setattr(PagePool, "reuse", lambda pool, room, salt, tokens, most: reuse(pool, room, "", tokens, most))

    def publish_for_all(pool: PagePool, room, salt, tokens, table, *, leaving: bool = False):
        publish(pool, room, "", tokens, table, leaving=leaving)

    patch.setattr(PagePool, "publish", publish_for_all)


def a_hit_may_cover_the_whole_prompt(patch: Patch) -> None:
    """Decode grants nothing for a prompt that it has whole, and prefill refuses such a grant."""
    patch.setattr(Holdings, "most_reused", lambda held, request: len(request.work.prompt) // held.pool.page_size)


def what_was_never_computed_is_published(patch: Patch) -> None:
    """Prefill publishes the whole prompt of a request that leaves, also of one that was aborted."""
    original = PrefillRole._leave

    def leave(role: PrefillRole, request):
        full = len(request.work.prompt) // role.pool.page_size
        if full and request.pages:
            tokens = request.first_tokens(full * role.pool.page_size)
            role.pool.publish(request.room, request.work.salt, tokens, request.pages[:full], leaving=True)
        return original(role, request)

    patch.setattr(PrefillRole, "_leave", leave)


def what_has_not_landed_is_published(patch: Patch) -> None:
    """Decode publishes the prompt of a request that ends, also of one whose transfer has failed."""
    original = DecodeRole._end

    def end(role: DecodeRole, request, reason, told_by):
        if request.state is State.TRANSFERRING:
            role._held.publish(request, len(request.work.prompt), leaving=True)
        return original(role, request, reason, told_by)

    patch.setattr(DecodeRole, "_end", end)


def a_flush_is_ignored(patch: Patch) -> None:
    """What was cached before a flush is still found."""
    patch.setattr(PagePool, "flush", lambda pool: None)


def a_flush_leaves_what_is_used(patch: Patch) -> None:
    """A flush frees the prefixes that nobody uses; the others are still found."""

    def flush(tree: PrefixTree):
        return tree.evict(tree.idle) if tree.idle else []

    patch.setattr(PrefixTree, "flush", flush)


def a_flush_frees_what_is_still_found(patch: Patch) -> None:
    """A flush gives the pages of unused prefixes away and leaves the prefixes where they are."""

    def flush(tree: PrefixTree):
        pages = [page for node in tree._unused.values() for page in node.pages]
        tree.pages -= len(pages)
        tree.idle = 0
        return pages

    patch.setattr(PrefixTree, "flush", flush)


def a_used_prefix_is_evicted(patch: Patch) -> None:
    """A prefix stays among the unused ones when somebody begins to use it."""

    def use(tree: PrefixTree, node):
        while node.parent is not None:
            node.uses += 1
            if node.uses > 1:
                return
            tree.idle -= len(node.pages)
            node = node.parent

    patch.setattr(PrefixTree, "_use", use)


def a_share_stays_locked(patch: Patch) -> None:
    """A room that gives its pages back does not end its use of what it shares."""
    patch.setattr(PrefixTree, "let_go", lambda tree, node: [])
