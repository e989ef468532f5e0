"""The prefix tree: what it knows, who uses it, and in what order it forgets. A page holds one token, a letter here."""

import pytest

from tandem.core.errors import IllegalTransition
from tandem.core.prefixes import Node, PrefixTree, path


def tokens(text: str) -> bytes:
    return text.encode("utf-32-le")


def known(tree: PrefixTree, text: str, salt: str = "", most: int = 99) -> tuple[int, ...]:
    """The pages of the longest known prefix, which nobody uses the more for having asked."""
    node = tree.follow(None, salt, tokens(text), most)
    if node is None:
        return ()
    pages = path(node)
    tree.let_go(node)
    return pages


def use(tree: PrefixTree, text: str, salt: str = "") -> Node:
    """Use what is known of a text."""
    node = tree.follow(None, salt, tokens(text), len(text))
    assert node is not None
    return node


def add(tree: PrefixTree, text: str, first: int, salt: str = "", held: Node | None = None) -> Node:
    """Make a text known and use it: the pages that are new are counted from `first`."""
    held = tree.follow(held, salt, tokens(text), len(text))
    new = len(text) - (held.end if held else 0)
    return tree.grow(held, salt, tokens(text), range(first, first + new))


def tree_of(*texts: str) -> PrefixTree:
    """Texts that were used one after the other. New pages of text 0 are 0, 1, ..., those of text 1 are 10, 11, ..."""
    tree = PrefixTree(1)
    for number, text in enumerate(texts):
        tree.let_go(add(tree, text, 10 * number))
    tree.audit([])
    return tree


# what is known


def test_the_longest_known_prefix_is_found():
    tree = tree_of("abc")
    assert known(tree, "abcd") == (0, 1, 2)
    assert known(tree, "abx") == (0, 1)
    assert known(tree, "x") == ()


def test_texts_that_part_share_the_pages_before():
    tree = tree_of("abcd", "abxy")
    assert known(tree, "abcd") == (0, 1, 2, 3)
    assert known(tree, "abxy") == (0, 1, 10, 11)
    assert tree.pages == 6


def test_no_more_pages_are_matched_than_allowed():
    assert known(tree_of("abc"), "abc", most=2) == (0, 1)
    assert known(tree_of("abc"), "abc", most=0) == ()


@pytest.mark.parametrize("same", range(1, 20))
def test_a_match_ends_where_the_first_page_differs(same: int):
    text = "abcdefghijklmnopqrst"
    changed = text[:same] + "-" + text[same + 1 :]
    assert known(tree_of(text), changed) == tuple(range(same))


def test_only_whole_pages_match():
    tree = PrefixTree(2)
    tree.grow(None, "", tokens("abcd"), [5, 6])
    assert known(tree, "abc") == (5,)
    assert known(tree, "abcx") == (5,)
    assert known(tree, "a") == ()


def test_salts_never_meet():
    tree = tree_of("abc")
    add(tree, "ab", 50, salt="tenant")
    assert known(tree, "abc", salt="tenant") == (50, 51)
    assert known(tree, "abc", salt="other") == ()


def test_a_prefix_in_use_grows_in_place():
    tree = PrefixTree(1)
    half = add(tree, "ab", 0)
    whole = add(tree, "abcd", 2, held=half)
    assert whole is half
    tree.audit([whole])
    tree.let_go(whole)
    assert known(tree, "abcd") == (0, 1, 2, 3)


def test_a_prefix_that_others_use_does_not_grow_with_them_on_it():
    tree = PrefixTree(1)
    mine = add(tree, "ab", 0)
    other = use(tree, "ab")
    longer = add(tree, "abcd", 2, held=mine)
    assert path(other) == (0, 1)
    assert path(longer) == (0, 1, 2, 3)
    tree.audit([other, longer])


def test_whoever_grows_a_prefix_must_have_used_it():
    tree = PrefixTree(1)
    held = add(tree, "ab", 0)
    with pytest.raises(IllegalTransition, match="no prefix"):
        tree.follow(held, "", tokens("xyz"), 3)


# who uses it


def test_what_is_used_is_not_idle():
    tree = tree_of("abc")
    assert tree.idle == 3
    node = use(tree, "abc")
    assert tree.idle == 0
    tree.let_go(node)
    assert tree.idle == 3


def test_a_use_ends_only_once_all_have_let_go():
    tree = tree_of("abc")
    first, second = use(tree, "abc"), use(tree, "abc")
    tree.let_go(first)
    assert tree.idle == 0
    tree.let_go(second)
    assert tree.idle == 3


def test_a_used_child_uses_its_parent():
    tree = tree_of("abcd", "abxy")
    node = use(tree, "abxy")
    assert tree.idle == 2
    assert sorted(tree.evict(2)) == [2, 3]
    tree.audit([node])


def test_a_cut_leaves_both_halves_with_whoever_used_the_whole():
    tree = tree_of("abcd")
    whole = use(tree, "abcd")
    half = use(tree, "ab")
    assert tree.idle == 0
    tree.audit([whole, half])
    tree.let_go(half)
    assert tree.idle == 0
    tree.let_go(whole)
    assert tree.idle == 4


def test_a_cut_frees_the_half_that_nobody_uses():
    tree = tree_of("abcd")
    half = use(tree, "ab")
    assert tree.idle == 2
    assert path(half) == (0, 1)
    tree.audit([half])


# what is forgotten


def test_the_least_recently_used_leaf_goes_first():
    tree = tree_of("a", "b", "c")
    tree.let_go(use(tree, "a"))
    assert tree.evict(2) == [10, 20]
    assert known(tree, "a") == (0,)


def test_a_use_lasts_until_it_ends():
    tree = tree_of("a", "b")
    node = use(tree, "a")
    tree.let_go(use(tree, "b"))
    tree.let_go(node)
    assert tree.evict(1) == [10]


def test_an_edge_is_evicted_from_its_end_and_only_as_far_as_needed():
    tree = tree_of("abcd")
    assert tree.evict(1) == [3]
    assert known(tree, "abcd") == (0, 1, 2)
    assert tree.evict(2) == [1, 2]
    assert known(tree, "abcd") == (0,)
    tree.audit([])


def test_a_trimmed_edge_grows_again():
    tree = tree_of("abcd")
    tree.evict(2)
    node = add(tree, "abxy", 50)
    assert path(node) == (0, 1, 50, 51)
    tree.audit([node])


def test_a_parent_goes_after_its_children():
    tree = tree_of("ab", "abc", "abd")
    tree.let_go(use(tree, "abc"))
    assert [tree.evict(1)[0] for _ in range(4)] == [20, 10, 1, 0]
    assert tree.pages == tree.idle == 0


def test_a_salt_is_forgotten_with_its_last_page():
    tree = PrefixTree(1)
    tree.let_go(add(tree, "ab", 0, salt="tenant"))
    tree.evict(2)
    assert not tree._roots
    assert known(tree, "ab", salt="tenant") == ()


def test_a_flush_gives_back_what_nobody_uses():
    tree = tree_of("abc", "x")
    node = use(tree, "ab")
    assert sorted(tree.flush()) == [2, 10]
    assert (tree.pages, tree.idle) == (2, 0)
    assert known(tree, "abc") == ()
    tree.audit([node])


def test_flushed_pages_leave_with_their_last_user():
    tree = tree_of("abc")
    first, second = use(tree, "abc"), use(tree, "ab")
    tree.flush()
    assert tree.let_go(first) == [2]
    assert tree.let_go(second) == [0, 1]
    assert tree.pages == 0


def test_what_becomes_known_after_a_flush_is_apart_from_what_was():
    tree = tree_of("abc")
    old = use(tree, "abc")
    tree.flush()
    new = add(tree, "abc", 50)
    assert path(new) == (50, 51, 52)
    tree.audit([old, new])
    assert tree.let_go(old) == [0, 1, 2]
    assert known(tree, "abc") == (50, 51, 52)


# who gives back what


def test_the_last_user_returns_a_shared_prefix():
    tree = tree_of("abcd")
    long, short = use(tree, "abcd"), use(tree, "ab")
    assert tree.returned_by([long, short]) == [2, 2]
    assert tree.returned_by([short, long]) == [0, 4]


def test_a_prefix_that_someone_else_uses_is_returned_by_nobody():
    tree = tree_of("abcd")
    long, short = use(tree, "abcd"), use(tree, "ab")
    assert tree.returned_by([long]) == [2]
    assert tree.returned_by([None, short]) == [0, 0]


def test_asking_who_returns_what_changes_nothing():
    tree = tree_of("ab")
    node = use(tree, "ab")
    assert tree.returned_by([node]) == tree.returned_by([node]) == [2]
    tree.audit([node])


# the audit


def test_a_use_without_a_holder_is_noticed():
    tree = tree_of("ab")
    use(tree, "ab")
    with pytest.raises(IllegalTransition, match="lost or doubled"):
        tree.audit([])


def test_a_wrong_count_is_noticed():
    tree = tree_of("ab")
    tree.idle -= 1
    with pytest.raises(IllegalTransition, match="lost or doubled"):
        tree.audit([])


def test_tokens_without_pages_are_noticed():
    tree = tree_of("ab")
    node = use(tree, "ab")
    node.tokens += b"more"
    with pytest.raises(IllegalTransition, match="out of order"):
        tree.audit([node])
