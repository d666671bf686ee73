"""Paged artifacts through the network that TensorRT's parser makes: mixed steps, draft tokens, keys of 8 bits."""

from __future__ import annotations

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.rollback.modes import REPLAY, SNAPSHOT
from hybridge.verification.options import DEFAULT_TOLERANCE, E4M3_TOLERANCE, VerifyOptions
from hybridge.verification.report import VerifyReport
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS
from tests.verify.network_cases import ATTENTION_ALONE, SIZES, exported

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

# Head sizes that the plugins' kernels support.
LARGE = {"head_dim": 64, "hybrid_override_pattern": "M-*M", "mamba_head_dim": 32, "ssm_state_size": 64, "n_groups": 2}
NETWORK, NATIVE = "tensorrt-network", "tensorrt-network-native"


def check(made: Exported, options: VerifyOptions) -> VerifyReport:
    """Verify, with plugins in the network unless ``options`` has it native."""
    report = verify(made.checkpoint, made.folder, options)
    assert report.passed, (report.verdict(), [c for c in report.comparisons if not c.passed][:3])
    assert not [note for note in report.notes if "only native layers" in note]
    return report


def check_drafts(report: VerifyReport) -> None:
    compared = {(c.scenario, c.item) for c in report.comparisons}
    for scenario in ("one-shot prefill", "chunked prefill", "prefill beside decode", "decode", "draft tokens"):
        assert (scenario, "logits") in compared
        # minimax has no convolution, lfm2 no other state.
        assert {(scenario, "conv_state"), (scenario, "recurrent_state")} & compared
    assert ("free blocks and slots", "unchanged") in compared


@pytest.mark.slow
def test_draft_tokens_agree_with_transformers(artifacts: ArtifactCache) -> None:
    """By a replay of the accepted tokens, which is what an engine with plugins chooses."""
    made = artifacts.get("nemotron_h", "bfloat16", LARGE, layout="paged", dtype=DType.FLOAT16)
    check_drafts(check(made, VerifyOptions(NETWORK, (1, 9), 4, speculative_tokens=2)))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "mode"), [(NETWORK, REPLAY), (NETWORK, SNAPSHOT), (NATIVE, SNAPSHOT)])
@pytest.mark.parametrize("family", [family for family in SIZES if family not in ATTENTION_ALONE])
def test_every_recurrent_family_takes_draft_tokens_back(
    family: str, engine: str, mode: str, artifacts: ArtifactCache
) -> None:
    made = exported(artifacts, family, layout="paged")
    check_drafts(check(made, VerifyOptions(engine, (1, 11), 4, speculative_tokens=2, draft_states=mode)))


@pytest.mark.slow
@pytest.mark.parametrize("engine", [NETWORK, NATIVE])
@pytest.mark.parametrize("family", ATTENTION_ALONE)
def test_every_family_of_attention_alone(family: str, engine: str, artifacts: ArtifactCache) -> None:
    made = exported(artifacts, family, layout="paged")
    assert not made.config.recurrent_layers, "a recurrent family needs sizes of its own in network_cases.py"
    check(made, VerifyOptions(engine, (1, 11), 4))


@pytest.mark.slow
@pytest.mark.parametrize("family", BASE_CONFIGS)
def test_every_family_of_odd_sizes(family: str, artifacts: ArtifactCache) -> None:
    made = artifacts.get(family, "float32", EXPERTS.get(family, {}), layout="paged")
    check(made, VerifyOptions(NATIVE, (1, 7), 3))


@pytest.mark.parametrize("mode", [REPLAY, SNAPSHOT])
@pytest.mark.parametrize("family", sample(("nemotron_h", "kimi_linear", "qwen3_next", "qwen3"), ()))
def test_keys_and_values_of_8_bits(family: str, mode: str, artifacts: ArtifactCache) -> None:
    """In float32: sums rounded to 16 bits would move many numbers to the next one of e4m3."""
    made = exported(artifacts, family, "float16", layout="paged", kv_dtype="fp8_e4m3")
    report = check(made, VerifyOptions(NETWORK, (1, 11), 4, speculative_tokens=2, draft_states=mode, float32=True))
    assert report.tolerance == E4M3_TOLERANCE
    with pytest.raises(EngineError, match="expected the plugins, which take keys and values of fp8_e4m3"):
        verify(made.checkpoint, made.folder, VerifyOptions(NATIVE, (1,), 1))


@pytest.mark.slow
@pytest.mark.parametrize("engine", [NETWORK, NATIVE])
@pytest.mark.parametrize("layout", ["dense", "paged"])
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_sixteen_bits_in_float32(dtype: DType, layout: str, engine: str, artifacts: ArtifactCache) -> None:
    """What remains of the error then is the order of sums: the checkpoint's numbers are those of the artifact."""
    for family in ("nemotron_h", "qwen3_next"):
        made = exported(artifacts, family, dtype.value, layout=layout)
        report = check(made, VerifyOptions(engine, (1, 11), 3, speculative_tokens=2, float32=True))
        assert report.tolerance == DEFAULT_TOLERANCE and report.computed_types == ("float32",)
        assert max(c.error for c in report.comparisons) < 2e-5
