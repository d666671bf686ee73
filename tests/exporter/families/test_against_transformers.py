"""Every value that a family's config can express, against transformers: a base case and rows that vary one factor.

Factors of parts that share nothing (attention, a recurrent mixer) vary in one row: hidden states are compared after
every layer, so that a difference shows in the layer of its part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.exporter.families.rows.attention import ATTENTION_ROWS
from tests.exporter.families.rows.bamba import BAMBA_ROWS
from tests.exporter.families.rows.linear_attention import LINEAR_ATTENTION_ROWS
from tests.exporter.families.rows.mamba1 import MAMBA1_ROWS
from tests.exporter.families.rows.mamba2 import MAMBA2_ROWS
from tests.support.agreement import assert_one_shot_agrees
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, save_tiny_model

# The order matters: on push, a value runs in the first family that has it.
ROWS: dict[str, list[dict[str, Any]]] = {
    **ATTENTION_ROWS,
    **BAMBA_ROWS,
    **MAMBA1_ROWS,
    **MAMBA2_ROWS,
    **LINEAR_ATTENTION_ROWS,
}


def cases() -> list[Any]:
    """Every row of every family. On push: each family's own values, and the base; not rows of values that an earlier
    family had."""
    found, known = [], set[tuple[str, str]]()
    for family, rows in ROWS.items():
        values = [{(name, repr(value)) for name, value in row.items()} for row in rows]
        on_push = [(family, row) for row, own in zip(rows, values, strict=True) if not own <= known]
        found += sample([(family, row) for row in [{}, *rows]], [(family, {}), *on_push])
        known.update(*values)
    return found


def case_name(value: object) -> str:
    return value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items())[:70] or "base"  # type: ignore[attr-defined]


def test_every_family_has_rows() -> None:
    assert set(ROWS) == set(BASE_CONFIGS)


@pytest.mark.parametrize(("model_type", "overrides"), cases(), ids=case_name)
def test_same_as_transformers(model_type: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    assert_one_shot_agrees(save_tiny_model(tmp_path, model_type, **overrides))
