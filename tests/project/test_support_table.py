"""README's support tables: the families are those of the registry, and a test proves what each cell claims."""

from __future__ import annotations

import ast
import re

from hybridge.exporter.families.registry import FAMILIES, LAYERS_NOT_SUPPORTED
from hybridge.exporter.families.text_models import TEXT_MODELS
from tests.project.pages import ROOT

# The tests by the beginning of a row and the column; a changed cell needs another look at its test.
BUILT = "tests/build/"
PROOFS: dict[tuple[str, str], dict[str, str]] = {
    ("float16, bfloat16, float32", "CPU (CI)"): {
        "yes, computed in float32": "tests/verify/test_verify.py::test_artifact_agrees_with_transformers"
    },
    ("float16, bfloat16, float32", "NVIDIA H200"): {
        "`--engine torch`": "tests/runtime/torch/test_gpu.py::test_ragged_steps_match_the_oracle"
    },
    ("float16, bfloat16, float32", "TensorRT"): {
        "TensorRT-RTX engines built without a GPU": f"{BUILT}test_exported_families.py::test_engine"
    },
    ("float16, bfloat16, float32", "network"): {
        "all families, plugins on and off": (
            "tests/verify/test_verify_network.py::test_every_family_with_sizes_of_the_kernels"
        )
    },
    ("[HTTP server]", "CPU (CI)"): {
        "yes": "tests/verify/test_verify_paged.py::test_paged_artifact_agrees_with_transformers"
    },
    ("[HTTP server]", "NVIDIA H200"): {
        "`--engine torch`": "tests/runtime/torch/test_paged_gpu.py::test_forty_requests_get_the_tokens_each_gets_alone"
    },
    ("[HTTP server]", "TensorRT"): {
        "built": f"{BUILT}test_paged_build.py::test_paged_engine_is_built_of_native_layers",
        "tested with test doubles": (
            "tests/runtime/tensorrt/test_paged_serving.py::test_requests_served_together_get_the_tokens_of_each_alone"
        ),
    },
    ("[HTTP server]", "network"): {
        "the same, paged": "tests/verify/test_verify_network_paged.py::test_every_family_of_odd_sizes"
    },
    ("`--kv-dtype fp8_e4m3`", "CPU (CI)"): {
        "yes": "tests/verify/test_verify_fp8_kv.py::test_artifact_agrees_with_transformers"
    },
    ("`--kv-dtype fp8_e4m3`", "NVIDIA H200"): {"faster decoding": "", "prefill nearly as fast": ""},
    ("`--kv-dtype fp8_e4m3`", "TensorRT"): {
        "built with plugins": f"{BUILT}test_paged_build.py::test_keys_and_values_of_e4m3_are_bytes_of_the_plugins"
    },
    ("`--kv-dtype fp8_e4m3`", "network"): {
        "yes, in float32": "tests/verify/test_verify_network_paged.py::test_keys_and_values_of_8_bits"
    },
    ("[speculative decoding]", "CPU (CI)"): {
        "yes": "tests/verify/test_verify_drafts.py::test_accepted_draft_tokens_agree_with_transformers"
    },
    ("[speculative decoding]", "NVIDIA H200"): {
        "`--engine torch`": "tests/runtime/torch/test_deferred_states_gpu.py::test_tokens_are_those_of_plain_greedy"
    },
    ("[speculative decoding]", "TensorRT"): {
        "built": f"{BUILT}test_speculative_build.py::test_engine_is_built_of_native_layers",
        "prediction heads too": (
            f"{BUILT}test_speculative_build.py::test_the_prediction_head_gets_an_engine_beside_the_models"
        ),
    },
    ("[speculative decoding]", "network"): {
        "recurrent families: snapshots; replay with plugins": (
            "tests/verify/test_verify_network_paged.py::test_every_recurrent_family_takes_draft_tokens_back"
        ),
        "prediction heads": "tests/verify/test_network_heads.py::test_a_head_is_that_of_the_architecture",
    },
    ("[CUDA plugins]", "CPU (CI)"): {"compiled": "tests/kernels/test_compile.py::test_compiles_without_a_gpu"},
    ("[CUDA plugins]", "NVIDIA H200"): {
        "each operator compared with float64, outside TensorRT": "tests/plugins/test_enqueue_gpu.py::test_results"
    },
    ("[CUDA plugins]", "TensorRT"): {
        "built": f"{BUILT}test_plugin_engines.py::test_the_engine_has_one_plugin_layer_a_node"
    },
    ("[CUDA plugins]", "network"): {
        "reference code": "tests/verify/test_verify_network.py::test_every_family_with_sizes_of_the_kernels"
    },
}


def tables() -> list[list[list[str]]]:
    """The cells of the tables of README's section Support, each with its header first."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Support\n")[1].split("\n## ")[0]
    found: list[list[list[str]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        found.append([rows[0], *rows[2:]])
    return found


def test_the_families_are_those_of_the_registry() -> None:
    (_, *rows), _ = tables()
    named = [name for cells in rows for name in re.findall(r"`(\w+)`", cells[0])]
    assert len(named) == len(set(named)) and set(named) == {*FAMILIES, *TEXT_MODELS}
    alone = [set(re.findall(r"`(\w+)`", cells[0])) for cells in rows if cells[1] == "the text model alone"]
    assert alone == [set(TEXT_MODELS)]


def test_families_that_are_not_available_are_those_of_the_registry() -> None:
    (line,) = re.findall(r"^Not available: (.*)\(", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"`(\w+)`", line)
    assert sorted(named) == sorted(name for name in LAYERS_NOT_SUPPORTED if not name.endswith("_text"))


def test_a_test_proves_each_cell() -> None:
    _, (header, *rows) = tables()
    columns = ["network" if "network" in name else name for name in header[1:]]
    cells = {(row[0], column): cell for row in rows for column, cell in zip(columns, row[1:], strict=True)}
    unproved = set(cells)
    for (begins, column), claims in PROOFS.items():
        (place,) = (each for each in cells if each[0].startswith(begins) and each[1] == column)
        unproved.remove(place)
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cells[place])
        for claim, proof in claims.items():
            assert claim in text, (place, claim)
            # Comparisons of speed link to their record instead.
            assert has_test(proof) if proof else "](" in cells[place], proof
    assert not unproved


def has_test(name: str) -> bool:
    """Whether ``name``, FILE::FUNCTION, is a test."""
    file, function = name.split("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)
