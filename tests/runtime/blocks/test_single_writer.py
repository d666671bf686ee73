"""The memory of a sequence has one writer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hybridge.runtime.blocks import SequenceMemory

RUNTIME = Path(__file__).resolve().parents[3] / "runtime"
WRITERS = {"blocks/block_manager.py", "blocks/sequence_memory.py"}
# The name of a variable, parameter or field that is the memory of a sequence.
NAME = "memory"
CHANGES = {"append", "clear", "extend", "insert", "pop", "remove"}


def written_fields(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, field) of each field of a ``SequenceMemory`` that is assigned, deleted or changed in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            target: ast.expr = node
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            target = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            target = node.func.value
        else:
            continue
        if isinstance(target, ast.Attribute) and target.attr in SequenceMemory.__slots__ and is_memory(target.value):
            yield node.lineno, target.attr


def is_memory(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) == NAME


def test_only_the_block_manager_changes_the_memory_of_a_sequence() -> None:
    found = [
        f"{path.relative_to(RUNTIME)}:{line} changes {field}"
        for path in sorted(RUNTIME.rglob("*.py"))
        if path.relative_to(RUNTIME).as_posix() not in WRITERS
        for line, field in written_fields(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


def test_every_way_to_change_a_field_is_seen() -> None:
    changes = "memory.length = 1", "sequence.memory.exact += 1", "del memory.blocks[2:]", "memory.blocks.append(3)"
    fields = [field for text in changes for _, field in written_fields(ast.parse(text))]
    assert fields == ["length", "exact", "blocks", "blocks"]
    reads = "length = memory.length", "other.length = 1", "memory.blocks.index(3)", "memory.blocks[0]"
    assert not [text for text in reads if list(written_fields(ast.parse(text)))]
