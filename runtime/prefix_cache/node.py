"""A node of the radix tree: a run of tokens, the KV blocks that hold them, at most one recurrent state at its end."""

from __future__ import annotations

from collections.abc import Iterator

from hybridge.runtime.prefix_cache.checkpoint_kind import CheckpointKind
from hybridge.runtime.prefix_cache.token_key import TOKEN_BYTES


class Node:
    """Tokens ``start``..``end`` of every sequence that passes through it.

    blocks: ids of the KV blocks that the run touches, block index ``start // block_size`` first. The first one may
        also be the parent's last, or a copy of it: the deepest node of a path decides about a block.
    state: slot of the state after exactly ``end`` tokens, or None.
    locks: how many readers need the KV of this node, here or below it. state_locks: how many read the state.
    kind: why the state was taken. resumed: how often it was resumed from. uses: the same, with those of states that it
        replaced. inherits: whether it has these from the one sequence that left it, and no other has resumed here.
    access, state_access: when the KV and the state were last of use, as ticks of the tree's clock.
    """

    __slots__ = (
        "access",
        "blocks",
        "children",
        "edge",
        "end",
        "inherits",
        "kind",
        "locks",
        "parent",
        "resumed",
        "state",
        "state_access",
        "state_locks",
        "uses",
    )

    def __init__(self, parent: Node | None, edge: bytes, blocks: tuple[int, ...] = ()) -> None:
        self.parent = parent
        self.edge = edge
        self.end: int = (0 if parent is None else parent.end) + len(edge) // TOKEN_BYTES
        self.blocks = blocks
        self.children: dict[bytes, Node] = {}
        self.state: int | None = None
        self.kind = CheckpointKind.END
        self.inherits = False
        self.locks = self.state_locks = 0
        self.access = self.state_access = self.uses = self.resumed = 0

    @property
    def start(self) -> int:
        """Tokens before this node."""
        return self.end - len(self.edge) // TOKEN_BYTES

    @property
    def first(self) -> bytes:
        """The key of the first token, by which the parent knows the node."""
        return self.edge[:TOKEN_BYTES]

    @property
    def attached(self) -> bool:
        """Whether the node is part of a tree; a root never is."""
        return self.parent is not None

    @property
    def key(self) -> bytes:
        """The key of all tokens up to the end of this node."""
        return b"".join(part.edge for part in self.path())

    @property
    def root(self) -> Root:
        """Where the sequences that pass through this node begin."""
        node: Node = self
        while node.parent is not None:
            node = node.parent
        assert isinstance(node, Root)
        return node

    def path(self) -> list[Node]:
        """The nodes from below the root to this one."""
        nodes = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def walk(self) -> Iterator[Node]:
        """This node and all below it, in no particular order."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


class Root(Node):
    """Where the sequences of one namespace begin: no tokens, no blocks, no state."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        super().__init__(None, b"")
        self.namespace = namespace
