"""How many states the way to one leaf may have."""

from __future__ import annotations

from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree


def thin_path(tree: RadixTree, node: Node, most: int) -> int:
    """Give up states above ``node``, least worth first, until it and they are at most ``most``; how many went.

    A state where the tree branches serves others than this path, and stays.
    """
    above = [each for each in node.path()[:-1] if each.state is not None]
    surplus = len(above) + (node.state is not None) - most
    if surplus <= 0:
        return 0
    free = [each for each in above if not each.state_locks and len(each.children) < 2]
    free.sort(key=tree.worth.of_state)
    for each in free[:surplus]:
        tree.drop_state(each)
    return len(free[:surplus])
