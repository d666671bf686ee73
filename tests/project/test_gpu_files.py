"""Files named ``*_gpu.py`` hold GPU tests alone: a machine without a GPU does not look into them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*_gpu.py")), ids=lambda path: path.stem)
def test_every_test_of_the_file_is_marked(path: Path) -> None:
    assigned = [ast.unparse(node) for node in ast.parse(path.read_text(encoding="utf-8")).body]
    assert any(text.startswith("pytestmark = ") and "pytest.mark.gpu" in text for text in assigned)
