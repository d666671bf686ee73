"""What ``hybridge new-family`` writes and lists, by families whose files are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.artifact.errors import CheckpointError, OutputError, UnsupportedError
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.registry import LAYERS_NOT_SUPPORTED
from hybridge.new_family import FamilyDraft, draft_family, write_family
from hybridge.new_family.draft import parsed
from tests.support.tiny_models import BASE_CONFIGS


def draft_of(model_type: str, monkeypatch: pytest.MonkeyPatch) -> FamilyDraft:
    """The draft of a family as if it were not supported yet."""
    monkeypatch.setattr("hybridge.new_family.draft.FAMILIES", {})
    return draft_family(model_type)


@pytest.mark.slow
def test_a_family_in_the_layout_of_llama_has_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = draft_of("arcee", monkeypatch)
    assert (draft.open_fields, draft.open_tensors, draft.error) == ({}, (), "")
    assert draft.text.count("\n") <= 60 and "\n    check_heads(config)\n" in draft.text
    neighbours = draft_of("helium", monkeypatch)
    assert (neighbours.open_fields, neighbours.open_tensors, neighbours.error) == ({}, (), "")
    assert "rope_from_config(config, head_dim, absent_theta=100000.0, interleaved=True)" in neighbours.text
    assert "attention_of(config, head_dim, rope, output_bias=False)" in neighbours.text


@pytest.mark.slow
def test_fields_and_tensors_that_differ_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = draft_of("seed_oss", monkeypatch)
    assert draft.open_fields["attention_out_bias"] == "bool, default False"
    assert draft.open_tensors == ("model.layers.0.self_attn.o_proj.bias [4096]: not in the model",)
    assert draft_of("internlm3", monkeypatch).open_fields["qkv_bias"] == "another name of attention_bias"
    windows = draft_of("exaone4", monkeypatch)
    assert "norm_after_layer_of(replace(attention, sliding_window=window), mlp)" in windows.text
    assert windows.open_fields == {"sliding_window_pattern": "int or str?, default 4"} and not windows.open_tensors
    failing = draft_of("kolibri1", monkeypatch)
    assert failing.error.endswith("intermediate_size: expected a value, found nothing")
    assert "moe_intermediate_size" in failing.open_fields and "hidden_size" not in failing.open_fields
    other = draft_of("starcoder2", monkeypatch)
    assert "model.norm.bias [3072]: not in the draft" in other.open_tensors


@pytest.mark.slow
def test_layers_without_attention_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = draft_of("olmo_hybrid", monkeypatch)
    assert "model.layers.3.self_attn.q_norm.weight: [128] in the draft, [3840] in the model" in (
        draft.open_tensors or ()
    )
    assert list(draft.other_layers) == [0]
    assert "linear_attn.A_log [30]" in draft.other_layers[0]
    assert not draft.error and "linear_conv_kernel_dim" in draft.open_fields and "vocab_size" not in draft.open_fields
    assert "tests/support/random_models.py" in draft.rows
    assert "attention_of(config, head_dim, None)" in draft_of("jamba", monkeypatch).text
    named_alike = draft_of("minimax", monkeypatch)
    assert (
        list(named_alike.other_layers) == [1]
        and "self_attn.qkv_proj.weight [12288, 4096]" in named_alike.other_layers[1]
    )
    with pytest.raises(UnsupportedError, match=r"expected attention .*: describe this family by hand"):
        draft_of("mamba", monkeypatch)
    # The draft does not read another layer as attention.
    kinds = {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
    with pytest.raises(CheckpointError, match="layer_types: expected layers of attention alone"):
        parsed(draft.text, HfConfig({**BASE_CONFIGS["olmo_hybrid"], **kinds}))


@pytest.mark.slow
def test_a_head_size_that_transformers_leaves_open_follows_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = draft_of("ministral", monkeypatch)
    assert (draft.open_fields, draft.open_tensors, draft.error) == ({}, (), "")


@pytest.mark.parametrize(
    ("model_type", "what"),
    [("llama", "one that is"), ("no_such_type", "none of this name"), *list(LAYERS_NOT_SUPPORTED.items())[:1]],
)
def test_other_types_are_refused(model_type: str, what: str) -> None:
    with pytest.raises(UnsupportedError, match=what):
        draft_family(model_type)


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    draft = FamilyDraft("other", "text\n", {}, {}, ())
    with pytest.raises(OutputError, match="expected a checkout"):
        write_family(draft, tmp_path)
    families = tmp_path / "exporter" / "families"
    families.mkdir(parents=True)
    (families / "registry.py").touch()
    assert write_family(draft, tmp_path).read_text() == "text\n"
    with pytest.raises(OutputError, match="expected no file of this name"):
        write_family(draft, tmp_path)
