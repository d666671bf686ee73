"""The report: one sentence that says what was computed in what, the place of a fault, tables for 80 columns."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from hybridge.verification.report import Comparison, VerifyReport


def report(*comparisons: Comparison, **fields: Any) -> VerifyReport:
    """A report on a float16 artifact of two layers."""
    values = {
        "model_type": "nemotron_h",
        "engines": ("onnxruntime",),
        "computed_types": ("float32",),
        "dtype": "float16",
        "reference": "transformers",
        "tolerance": 1e-4,
        "prompt_lengths": (1, 7, 133),
        "decode_steps": 16,
        "long_windows": (),
        "not_crossed": (),
        "layer_types": ("gated_delta_net", "attention"),
    }
    return VerifyReport(comparisons=comparisons, **{**values, **fields})


def found(item: str, layer: int | None, error: float = 1.0, scenario: str = "decode") -> Comparison:
    return Comparison("onnxruntime", scenario, item, layer, error, error <= 1e-4)


def test_the_verdict_names_the_type_of_each_computation() -> None:
    good = found("logits", None, 1e-6)
    text = "verified: 1 comparisons within 0.0001, prompts of 1, 7 and 133 tokens, computed in float32 by onnxruntime"
    assert report(good).verdict() == f"{text}, not in the artifact's float16"
    assert report(good, dtype="float32").verdict() == text
    assert report(good, engines=("torch",), computed_types=("float16",)).verdict().endswith("in float16 by torch")


def test_the_verdict_names_the_windows_that_were_crossed() -> None:
    window = ("the sliding window of 4096 tokens",)
    verdict = report(found("logits", None, 0.0), long_windows=window).verdict()
    assert "133 tokens, a row across the sliding window of 4096 tokens, computed" in verdict
    verdict = report(found("logits", None, 0.0), not_crossed=window).verdict()
    assert verdict.endswith("; no row crossed the sliding window of 4096 tokens")


@pytest.mark.parametrize(
    ("failed", "place", "words"),
    [
        ((found("embeddings", None), found("hidden", 0)), "embedding", "the first difference is in the embedding"),
        ((found("hidden", 1), found("key", 1), found("logits", None)), "layer 1", "layer 1 (attention)"),
        ((found("logits", None),), "head", "the head (final norm or output projection)"),
        (
            (found("unchanged", None, scenario="free blocks and slots"),),
            "free blocks and slots",
            "free blocks and slots",
        ),
    ],
)
def test_a_fault_has_a_place(failed: tuple[Comparison, ...], place: str, words: str) -> None:
    made = report(found("hidden", 0, 0.0), *failed)
    assert not made.passed and made.failing_place == place
    assert words in made.verdict() and made.to_json()["failing_place"] == place


def test_tables_fit_into_80_columns() -> None:
    items = ("hidden", "key", "value", "conv_state", "recurrent_state")
    rows = [found(item, layer, 1e-6, "prefill beside decode") for item in items for layer in (0, 1)]
    rows += [found("logits", None, 1e-6), found("unchanged", 0, float("inf"), "row without tokens")]
    engines = ("onnxruntime", "onnxruntime-portable")
    out = io.StringIO()
    made = report(*rows, engines=engines, computed_types=("float32", "float32"))
    Console(file=out, width=80, color_system=None).print(made.render())
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in out.getvalue()
    (row,) = [line for line in lines if "prefill beside decode" in line]
    assert row.split() == ["prefill", "beside", "decode", *["1.0e-06"] * 5]
    assert "  row without tokens: CHANGED" in lines
