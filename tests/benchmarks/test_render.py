"""The page is filled completely, and only from correct documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import render
from benchmarks.render import NO_RUN, main, page
from tests.benchmarks.documents import all_documents

SPREAD = {"median": 12.34, "min": 12.0, "max": 13.0}
SIZES = {
    "machine": {"cpu": "Some CPU (family 1 model 2, avx2)", "cores": 2, "other_work": 0.01},
    "commit": "abc",
    "results": {
        "Large": {
            "constructed": True,
            "checkpoint_bytes": 1_098_600_000_000,
            "wall_s": SPREAD,
            "cpu_s": SPREAD,
            "peak_rss_bytes": {"median": 8e8, "min": 8e8, "max": 9e8},
            "over_imports": SPREAD,
        }
    },
    "targets": [
        {"name": "Large, wall time", "limit": 60, "value": 12.3, "met": True},
        {"name": "Large, wall time over that of the imports", "limit": 5, "value": 12.3, "met": False},
    ],
}
"""A kept run of export_sizes."""


def test_every_placeholder_is_filled() -> None:
    text = page(all_documents(), {})
    assert "{{" not in text and "}}" not in text
    assert "| random 150M, 64 new tokens |" in text
    assert "12.3 (11.5 to 1234)" in text
    assert "| 0.9 | 1.25 | 9.5 | 2 | 33.2 |" in text


def test_tables_have_as_many_cells_as_headings() -> None:
    widths: list[int] = []
    for line in page(all_documents(), {}).splitlines():
        if not line.startswith("|"):
            widths = []
            continue
        widths.append(line.count("|"))
        assert widths[0] == widths[-1], line


def test_comparisons_are_one_sentence() -> None:
    documents = all_documents()
    documents["export"]["gates"] = [
        {"checks": "", "value": 2e-5, "limit": 1e-4},
        {"checks": "", "value": 0, "limit": 0},
    ]
    expected = (
        "All 6 comparisons passed: 1 of tokens found no difference, the others errors of at most 20 % of the tolerance."
    )
    assert expected in page(documents, {})


def test_a_missing_or_wrong_benchmark_is_refused() -> None:
    documents = all_documents()
    with pytest.raises(ValueError, match="export: expected green gates"):
        page(all_documents(error=1.0), {})
    del documents["start_up"]
    with pytest.raises(ValueError, match="start_up: expected its document"):
        page(documents, {})


def test_commits_are_named_apart_where_they_differ() -> None:
    documents = {name: {**document, "commit": "abc"} for name, document in all_documents().items()}
    assert "| commit | `abc` |" in page(documents, {})
    documents["serving"]["commit"] = "def"
    others = ", ".join(f"`{name}`" for name in documents if name != "serving")
    assert f"| commit | `abc`: {others}; `def`: `serving` |" in page(documents, {})


def test_the_share_of_other_work_is_rounded_up() -> None:
    documents = all_documents()
    documents["export"]["machine"]["other_work"] = 0.0101
    assert "| at most 2 % |" in page(documents, {})


def test_every_kernel_page_is_in_the_index() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs" / "explanation"
    index = (docs / "kernels.md").read_text(encoding="utf-8")
    assert not [path.name for path in (docs / "kernels").glob("*.md") if f"(kernels/{path.name})" not in index]


def test_the_command_prints_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setattr("sys.argv", ["render", str(results)])
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    assert main() == 2
    assert "No such file" in capsys.readouterr().err
    results.write_text(json.dumps({"benchmarks": all_documents()}), encoding="utf-8")
    assert main() == 0
    assert capsys.readouterr().out == page(all_documents(), {})


def test_a_kept_run_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    kept, results = tmp_path / "export_sizes.json", tmp_path / "results.json"
    kept.write_text(json.dumps(SIZES), encoding="utf-8")
    results.write_text(json.dumps({"benchmarks": all_documents()}), encoding="utf-8")
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["render", str(results)])
    assert main() == 0
    text = capsys.readouterr().out
    assert "| Large (constructed) | 1098.6 | 12.3 | 12.3 | 900 | 60 | 12.3 (**missed**: at most 5) |" in text
    assert "\nSome CPU, family 1, 2 cores, commit `abc`, other work 1 %.\n" in text
    no_run = NO_RUN.format("export_sizes")
    assert no_run in page(all_documents(), {}) and no_run not in text


def test_a_kept_run_beside_llama_cpp_is_shown() -> None:
    result: dict[str, Any] = {}
    for kind in ("decode", "prompt"):
        result |= {f"{kind}_tokens_per_s": {"int4": SPREAD}, f"{kind}_times_llama_cpp": {"int4": SPREAD}}
    measured = {"weight_bytes": 10, "mean_kl": 0.5, "kl_999": 0.75}
    result["quality"] = {"int4": measured, "Q4_K_M": {**measured, "weight_bytes": 20, "kl_999": 1.5}}
    result["quality"] |= {"int8": {**measured, "mean_kl": 0.75}, "Q8_0": {**measured, "weight_bytes": 8}}
    names = (
        "tiny, int4: decode, times Q4_K_M",
        "tiny, int4: prompt, times Q4_K_M",
        "tiny, int4: mean KL, times Q4_K_M's",
    )
    targets = [{"name": name, "limit": 13, "value": 12.34, "met": name == names[0]} for name in names]
    text = page(all_documents(), {"quantized_decode": {**SIZES, "results": {"tiny": result}, "targets": targets}})
    assert "\n- tiny: decode 12.3; prompt 12.3\n" in text
    assert "- **missed**: prompt, times Q4_K_M (target 13): tiny, int4 12.3" in text
    assert "\n- tiny: int4 0.500, 0.5/0.5, 0.75/1.5; int8 **1.250**, **0.75/0.5**, 0.75/0.75\n" in text
    assert "**missed**: mean KL" not in text
    many = [{"name": f"tiny, {n}: time", "limit": 1, "value": n, "met": False} for n in range(2, 8)]
    text = page(all_documents(), {"quantized_decode": {**SIZES, "results": {"tiny": result}, "targets": many}})
    assert "- **missed**: time (target 1): 6 times, 2 to 7" in text


def test_a_kept_run_of_hybrid_families_is_shown() -> None:
    result = {
        f"{kind}_{name}": values
        for kind in ("decode", "prompt")
        for name, values in (("tokens_per_s", {"ours": SPREAD}), ("ratios", {"transformers": SPREAD}))
    }
    missed = [{"name": "mamba: decode, times transformers", "limit": 3, "value": 2.3, "met": False}]
    text = page(all_documents(), {"hybrid_decode": {**SIZES, "results": {"mamba": result}, "targets": missed}})
    assert "- mamba: decode 12.3 (12.3), prompt 12.3 (12.3)" in text
    assert "- **missed**: decode, times transformers (target 3): mamba 2.3" in text


def test_a_kept_run_of_accelerated_models_is_shown() -> None:
    result = {"token_ms": {"transformers": SPREAD, "export": SPREAD}, "speed_up": {"export": SPREAD}}
    text = page(all_documents(), {"accelerated_generate": {**SIZES, "results": {"tiny": result}}})
    assert "\n- tiny: transformers 12.3, export 12.3 (12.3)\n" in text


def test_targets_are_listed_where_missed_or_without_a_section() -> None:
    text = page(all_documents(), {})
    assert "targets are met" in text and "| `cpu_decode`: " not in text
