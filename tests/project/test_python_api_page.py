"""The tables of docs/reference/python_api.md name what there is."""

from __future__ import annotations

import dataclasses
import re

import pytest

from hybridge import errors
from hybridge.runtime.generation import Generation
from hybridge.runtime.sampling import SamplingParams
from tests.project.test_wheel import ROOT

PAGE = ROOT / "docs" / "reference" / "python_api.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_table_names_every_field_of_a_generation(page: str) -> None:
    table = page[page.index("| field |") : page.index("The prompt and all new tokens")]
    named = set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row)))
    assert named == {field.name for field in dataclasses.fields(Generation)}


def test_steps_of_sampling_are_in_the_order_of_the_parameters(page: str) -> None:
    table = page[page.index("| step |") : page.index("def digits_first")]
    named = re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")))
    order = (SamplingParams.__doc__ or "").split("Order of the steps: ")[1].split(", sample")[0]
    assert named == re.split(r",\s+", order)


def test_errors_of_the_table_exist(page: str) -> None:
    table = page[page.index("| error |") :]
    named = re.findall(r"`(\w+Error)`", table)
    assert len(named) >= 6
    assert all(issubclass(getattr(errors, name), errors.HybridgeError) for name in named)
