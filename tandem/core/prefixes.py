"""The prefix cache: a radix tree from tokens to pages, one root per salt, whose unused pages can be given away.

Tokens are bytes, four little-endian ones per token, so that a match costs about as much as comparing memory.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tandem.core.errors import IllegalTransition
from tandem.core.ids import PageId
from tandem.core.journal import Journal

TOKEN_BYTES = 4


def packed(tokens: Sequence[int]) -> bytes:
    """Tokens as the cache compares them."""
    return struct.pack(f"<{len(tokens)}i", *tokens)  # a third of what numpy takes


@dataclass(slots=True, eq=False)
class Node:
    """A compressed edge and its lower end: pages[i] holds the i-th page of tokens. A root has neither, nor a parent."""

    number: int  # order of creation
    key: bytes  # its place among its siblings: the first page of its tokens; of a root, the salt
    parent: "Node | None"
    start: int  # pages before the edge
    tokens: bytearray
    pages: list[PageId]
    life: int  # flushes before it was made: an older one than the tree's is never matched again
    uses: int = 0  # by holders of the node itself, and one for each child that is used
    children: "dict[bytes, Node]" = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Pages from the root to the end of the edge."""
        return self.start + len(self.pages)


def path(node: Node) -> tuple[PageId, ...]:
    """The pages from the root to the end of this node, in the order of their tokens."""
    edges = [node.pages]
    while node.start:
        assert node.parent is not None
        node = node.parent
        edges.append(node.pages)
    if len(edges) == 1:
        return tuple(node.pages)  # the most common path, and it may be long
    pages: list[PageId] = []
    for edge in reversed(edges):
        pages += edge
    return tuple(pages)


class PrefixTree:
    """Whoever uses a node uses its whole path, so a used child has a used parent. Only unused leaves are evicted.

    `_unused` holds all nodes that nobody uses, in the order in which their last use ended, children before parents:
    the first is the least recently used leaf.
    """

    def __init__(self, page_size: int) -> None:
        self.journal: Journal | None = None
        """Is told what can be found, if there is one."""
        self.pages = 0  # in the tree, and flushed ones that are still used
        self.idle = 0  # pages that nobody uses
        self.life = 0  # counts flushes
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[str, Node] = {}
        self._unused: OrderedDict[int, Node] = OrderedDict()
        self._made = 0

    # what is known

    def follow(self, held: Node | None, salt: str, tokens: bytes, most: int) -> Node | None:
        """Use the longest known prefix of at most `most` pages, in place of `held`, a part of it.

        None: nothing is known. Raises IllegalTransition if `held` is a prefix of something else.
        """
        start = held or self._roots.get(salt)
        if start is None:
            return None
        if held is not None and held.end <= most and not tokens.startswith(held.tokens, held.start * self._page_bytes):
            raise IllegalTransition(f"the {held.end} pages held are no prefix of these {len(tokens)} bytes of tokens")
        found = self._descend(start, tokens, min(most, len(tokens) // self._page_bytes))
        if found.parent is None:
            return None
        self._use(found)
        if held is not None:
            held.uses -= 1  # still used: `found` is it, or lies below it
        return found

    def goes_on(self, held: Node | None, salt: str, tokens: bytes) -> bool:
        """Whether the page behind what is held is known, too."""
        node = held or self._roots.get(salt)
        start = node.end * self._page_bytes if node is not None else 0
        return node is not None and tokens[start : start + self._page_bytes] in node.children

    def _descend(self, node: Node, tokens: bytes, most: int) -> Node:
        """The node below this one where the known prefix ends. Cuts an edge if it ends inside."""
        size = self._page_bytes
        while node.end < most:
            start = node.end * size
            child = node.children.get(tokens[start : start + size])
            if child is None:
                break
            if child.end > most or not tokens.startswith(child.tokens, start):
                return self._cut(child, self._shared(child, tokens, min(len(child.pages), most - child.start)))
            node = child
        return node

    def _shared(self, node: Node, tokens: bytes, most: int) -> int:
        """How many of an edge's first `most` pages these tokens share. By halves, so no page is compared twice."""
        size, start = self._page_bytes, node.start * self._page_bytes
        known, end = 0, most
        with memoryview(node.tokens) as edge:
            while known < end:
                middle = (known + end + 1) // 2
                if tokens.startswith(edge[known * size : middle * size], start + known * size):
                    known = middle
                else:
                    end = middle - 1
        return known

    def _cut(self, node: Node, count: int) -> Node:
        """Cut an edge after `count` pages. The upper part is new: whoever uses the whole goes on using the lower."""
        assert node.parent is not None
        cut = count * self._page_bytes
        upper = self._make(node.key, node.parent, node.start, node.tokens[:cut], node.pages[:count])
        del node.tokens[:cut], node.pages[:count]
        node.key, node.parent, node.start = bytes(node.tokens[: self._page_bytes]), upper, upper.end
        upper.children[node.key] = node
        if node.uses:
            upper.uses = 1
        else:
            self._unused[upper.number] = upper  # at the end, as it will be used at once
        return upper

    def _make(self, key: bytes, parent: Node | None, start: int, tokens: bytearray, pages: list[PageId]) -> Node:
        self._made += 1
        node = Node(self._made, key, parent, start, tokens, pages, self.life)
        if parent is not None:
            parent.children[key] = node
        return node

    # what becomes known

    def grow(self, held: Node | None, salt: str, tokens: bytes, pages: Sequence[PageId]) -> Node:
        """Add pages behind the longest known prefix, which the caller holds, and use the new end in its place."""
        node = held or self._roots.get(salt) or self._plant(salt)
        start = node.end * self._page_bytes
        added = bytearray(tokens[start : start + len(pages) * self._page_bytes])
        key = bytes(added[: self._page_bytes])
        assert node.life == self.life
        assert key not in node.children
        self.pages += len(pages)
        if self.journal is not None:
            self.journal.stored(node.pages[-1] if node.pages else None, salt, bytes(added), pages)
        if held is not None and held.uses == 1 and not held.children:
            held.tokens += added  # nobody else uses its end: one long edge is faster than many
            held.pages += pages
            return held
        leaf = self._make(key, node, node.end, added, list(pages))
        leaf.uses = 1  # and those of `held` stay: the leaf takes the caller's place
        return leaf

    def _plant(self, salt: str) -> Node:
        root = self._roots[salt] = self._make(salt.encode(), None, 0, bytearray(), [])
        return root

    # who uses it

    def _use(self, node: Node) -> None:
        while node.parent is not None:
            node.uses += 1
            if node.uses > 1:
                return
            del self._unused[node.number]
            self.idle -= len(node.pages)
            node = node.parent

    def let_go(self, node: Node) -> list[PageId]:
        """End one use. Returns the pages that leave the tree with it: flushed ones that nobody else uses."""
        left: list[PageId] = []
        while node.parent is not None:
            node.uses -= 1
            if node.uses:
                break
            if node.life == self.life:
                self._unused[node.number] = node
                self.idle += len(node.pages)
            else:
                left += node.pages
            node = node.parent
        self.pages -= len(left)
        return left

    def returned_by(self, ends: Iterable[Node | None]) -> list[int]:
        """Pages that nobody uses any more when one use of each node has ended, one after the other in this order."""
        uses: dict[int, int] = {}
        return [self._last_uses(node, uses) for node in ends]

    def _last_uses(self, node: Node | None, uses: dict[int, int]) -> int:
        pages = 0
        while node is not None and node.parent is not None:
            left = uses[node.number] = uses.get(node.number, node.uses) - 1
            if left:
                break
            pages += len(node.pages)
            node = node.parent
        return pages

    # what is forgotten

    def evict(self, count: int) -> list[PageId]:
        """Take this many unused pages out of the tree, from the ends of the least recently used leaves."""
        evicted: list[PageId] = []
        while len(evicted) < count:
            leaf = next(iter(self._unused.values()))
            kept = max(0, len(leaf.pages) - (count - len(evicted)))
            evicted += leaf.pages[kept:]
            if kept:
                del leaf.pages[kept:], leaf.tokens[kept * self._page_bytes :]
            else:
                self._remove(leaf)
        self.pages -= count
        self.idle -= count
        if self.journal is not None:
            self.journal.removed(evicted)
        return evicted

    def _remove(self, leaf: Node) -> None:
        """Also the root, if it was its last child: salts come and go."""
        assert leaf.parent is not None
        assert not leaf.children
        del self._unused[leaf.number], leaf.parent.children[leaf.key]
        if leaf.parent.parent is None and not leaf.parent.children:
            del self._roots[leaf.parent.key.decode()]

    def flush(self) -> list[PageId]:
        """Nothing known now is matched again. Returns the unused pages; the others leave when their last use ends."""
        flushed = [page for node in self._unused.values() for page in node.pages]
        self._unused.clear()
        self._roots.clear()
        self.life += 1
        self.pages -= len(flushed)
        self.idle = 0
        if self.journal is not None:
            self.journal.flushed()
        return flushed

    # for tests and the simulator

    def audit(self, ends: Iterable[Node]) -> list[PageId]:
        """All pages here, node by node. Raises IllegalTransition unless `ends` are all that is used."""
        nodes, uses = dict(self._unused), dict.fromkeys(self._unused, 0)
        for end in ends:
            node = end
            while node.parent is not None:
                uses[node.number] = uses.get(node.number, 0) + 1
                if node.number in nodes:
                    break
                nodes[node.number] = node
                node = node.parent
        pages = [page for node in nodes.values() for page in node.pages]
        idle = sum(len(node.pages) for node in self._unused.values())
        if uses != {node.number: node.uses for node in nodes.values()} or (len(pages), idle) != (self.pages, self.idle):
            raise IllegalTransition(f"uses of prefixes are lost or doubled: {self.pages} pages, {self.idle} idle")
        known = list(self._known())
        if len(known) != sum(node.life == self.life for node in nodes.values()) or not all(map(self._sound, known)):
            raise IllegalTransition(f"prefixes are out of order: {len(known)} known, {len(nodes)} here")
        return pages

    def _known(self) -> Iterator[Node]:
        nodes = list(self._roots.values())
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            if node.parent is not None:
                yield node

    def _sound(self, node: Node) -> bool:
        parent, size = node.parent, self._page_bytes
        placed = parent is not None and parent.children.get(node.key) is node and parent.end == node.start
        filled = bool(node.pages) and len(node.tokens) == len(node.pages) * size and node.tokens.startswith(node.key)
        return placed and filled
