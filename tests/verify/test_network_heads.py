"""Multi-token prediction heads in the network that TensorRT's parser makes, against the architecture in float64.

A push compares one with ONNX Runtime, which needs no transformers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hybridge.artifact.names import LOGITS, layer_output
from hybridge.runtime.engines.pool_sizes import PoolSizes
from tests.exporter.test_mtp_export import (
    BLOCK,
    FAMILIES,
    HIDDEN,
    PARTS,
    GivenStates,
    PortableHead,
    Reference,
    arrays_of,
)
from tests.support.artifacts import ArtifactCache

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

from hybridge.runtime.engines.tensorrt_network import parsed
from hybridge.runtime.engines.tensorrt_network.mtp_head import HiddenRowInputs, NativeNetworkMtpHead, NetworkMtpHead
from hybridge.runtime.engines.tensorrt_network.paged_engine import NetworkPagedEngine


@pytest.mark.slow
@pytest.mark.parametrize("engine", [NetworkMtpHead, NativeNetworkMtpHead])
@pytest.mark.parametrize("case", FAMILIES)
@torch.no_grad()
def test_a_head_is_that_of_the_architecture(
    case: str, engine: type[NetworkPagedEngine], artifacts: ArtifactCache, tmp_path: Path
) -> None:
    overrides = {**FAMILIES[case], "head_dim": 64}
    pattern = overrides.pop("pattern", "")
    made = artifacts.get(case.split()[0], "float32", overrides, mtp_pattern=pattern, layout="paged", max_seq_len=64)
    torch.manual_seed(1)
    ids, hidden = torch.randint(0, 97, (21,)), torch.randn(21, HIDDEN, dtype=torch.float64)
    reference = Reference(made.checkpoint, pattern, tmp_path / "reference")
    head = engine(made.folder)
    assert not head.notes  # which would say why there are no plugins
    head.allocate_pools(PoolSizes(3, BLOCK, 0))
    name = layer_output(head.config.num_hidden_layers - 1)
    for own in (False, True):
        head.fill_pools(0.0)
        logits, after = reference.run(ids, hidden, own)
        for begin, end in PARTS:
            slots = np.arange(begin, end)
            rows = {"hidden_rows": hidden.float().numpy(), "hidden_slots": slots}
            given = HiddenRowInputs(**arrays_of(ids[begin:end], begin, own), **rows)
            found = head.step_values(given, (name,))
            np.testing.assert_allclose(found[LOGITS], logits[begin:end].numpy(), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(found[name], after[begin:end].numpy(), rtol=1e-4, atol=1e-4)
    head.close()


def test_a_head_is_that_of_onnxruntime(artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests check profiles, which takes longer than all the rest.
    monkeypatch.setattr(parsed, "check_profile_shapes", lambda *given: None)
    folder = artifacts.get("qwen3_next", "float32", mtp_pattern="", layout="paged", max_seq_len=64).folder
    torch.manual_seed(2)
    ids, hidden = torch.randint(0, 97, (21,)), torch.randn(21, HIDDEN)
    heads = NativeNetworkMtpHead(folder), PortableHead(folder)
    name = layer_output(heads[0].config.num_hidden_layers - 1)
    for head in heads:
        head.allocate_pools(PoolSizes(3, BLOCK, 0))
        head.fill_pools(0.0)
    for own, (begin, end) in zip((False, False, True), PARTS, strict=True):
        step, states = arrays_of(ids[begin:end], begin, own), hidden[begin:end].numpy()
        found = heads[0].step_values(
            HiddenRowInputs(**step, hidden_rows=hidden.numpy(), hidden_slots=np.arange(begin, end)), (name,)
        )
        expected = heads[1].step_values(GivenStates(**step, hidden_states=states), (name,))
        for value in (LOGITS, name):
            np.testing.assert_allclose(found[value], expected[value], rtol=1e-4, atol=1e-4)
    for head in heads:
        head.close()
