"""The order in which the results of parts are added: a fixed binary tree."""

import functools
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from ..base.array_modules import Array

_Part = TypeVar("_Part")

#: The number of a part, or two trees that are added.
Tree: TypeAlias = int | tuple["Tree", "Tree"]


def fold_tree(parts: Iterable[_Part], add: Callable[[_Part, _Part], _Part]) -> _Part:
    """Add one or more parts along the tree of a binary counter.

    Neighbours are added as soon as both are sums of equally many parts: 0 + 1, 2 + 3, then the two
    sums, and so on. At the end the sums that are left are added from the last to the first. So the
    order depends on the number of parts only, and parts can be made one after the other. `add` gets
    the earlier of two neighbours first, and may reuse their memory.

    >>> fold_tree("abcdefg", lambda a, b: f"({a}{b})")
    '(((ab)(cd))((ef)g))'
    """
    sums: list[tuple[int, _Part]] = []
    for part in parts:
        count = 1
        while sums and sums[-1][0] == count:
            part = add(sums.pop()[1], part)
            count = 2 * count
        sums.append((count, part))
    _, total = sums.pop()
    while sums:
        total = add(sums.pop()[1], total)
    return total


@functools.cache
def make_tree(num_parts: int) -> Tree:
    """Return the tree along which `fold_tree` adds so many parts.

    >>> make_tree(5)
    (((0, 1), (2, 3)), 4)
    """
    numbers: Iterable[Tree] = range(num_parts)
    return fold_tree(numbers, lambda a, b: (a, b))


def count_waiting(num_parts: int) -> int:
    """Count the sums that wait in `fold_tree`, at most, while a part is made.

    >>> [count_waiting(num_parts) for num_parts in (1, 2, 3, 4, 7, 8)]
    [0, 1, 1, 2, 2, 3]
    """
    return num_parts.bit_length() - 1


@functools.cache
def renumber(tree: Tree, numbers: tuple[int, ...]) -> Tree:
    """Return a tree with the place in `numbers` of each of its numbers.

    >>> renumber(((4, 0), 7), (0, 4, 7))
    ((1, 0), 2)
    """
    if isinstance(tree, int):
        return numbers.index(tree)
    left, right = tree
    return renumber(left, numbers), renumber(right, numbers)


@functools.cache
def count_parts(tree: Tree) -> int:
    if isinstance(tree, int):
        return 1
    left, right = tree
    return count_parts(left) + count_parts(right)


def add_parts(rows: Array, tree: Tree, out: Array | None = None) -> Array:
    """Add the parts of a matrix, each with equally many rows, along a tree of their numbers.

    >>> import numpy as np
    >>> add_parts(np.arange(6).reshape(6, 1), ((0, 1), 2)).tolist()
    [[6], [9]]
    """
    length = rows.shape[0] // count_parts(tree)

    def add(subtree: Tree) -> Array:
        if isinstance(subtree, int):
            return rows[subtree * length : (subtree + 1) * length]
        left, right = subtree
        return add(left) + add(right)

    if out is None:
        return add(tree)
    out[...] = add(tree)
    return out


@functools.cache
def express(tree: Tree, part: str) -> str:
    """Return the sum along a tree as an expression in C.

    >>> express(((0, 1), 2), "PART")
    '((PART(0)+PART(1))+PART(2))'
    """
    if isinstance(tree, int):
        return f"{part}({tree})"
    left, right = tree
    return f"({express(left, part)}+{express(right, part)})"
