"""What is prepared for which step, and that it computes what is computed at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.torch import paged_steps
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from tests.runtime.onnxruntime.test_candidates import COLUMNS, step_of
from tests.runtime.torch.test_candidates import filled, states_of
from tests.support.artifacts import ArtifactCache, Exported

# Of a step: new tokens of each row, whether there are candidates, and where it is kept.
STEPS = {
    "one token a row": ([1, 1, 1], False, "decode"),
    "a prompt beside decoding rows": ([1, 6, 1], False, "mixed"),
    "longer prompts": ([6, 6, 6], False, "mixed"),
    "candidates": ([1, COLUMNS, 2], True, "candidates"),
    "no candidate in a step for them": ([1, 1], True, "candidates"),
    "a prompt beside candidates": ([COLUMNS, COLUMNS + 3], True, "mixed"),
}


@pytest.fixture(scope="module")
def exported(artifacts: ArtifactCache) -> Exported:
    return artifacts.get("nemotron_h", "float32", layout="paged", speculative_tokens=COLUMNS - 1, max_batch_size=4)


def packed(name: str) -> PackedInputs:
    counts, candidates, _ = STEPS[name]
    step = step_of(counts, COLUMNS, padding=0, seed=7)
    if candidates:
        return step
    return replace(step, state_indices=step.state_indices[:, 0].copy(), num_accepted_tokens=None)


def prepared(engine: TorchPagedEngine, inputs: PackedInputs) -> np.ndarray:
    """Logits of a step, computed on the CPU as on a GPU."""
    return engine._steps.launch(inputs, engine.pools, engine._program, None).all_logits()


@pytest.mark.parametrize("name", STEPS)
def test_a_prepared_step_agrees_with_one_computed_at_once(name: str, exported: Exported) -> None:
    engine, inputs, found = TorchPagedEngine(exported.folder, device="cpu"), packed(name), []
    for way in (engine.step, lambda step: prepared(engine, step)):
        filled(engine)
        found.append([way(inputs).copy(), *states_of(engine).values()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=2e-5)
    steps = {"decode": engine.decode_steps, "candidates": engine.candidate_steps, "mixed": engine.mixed_steps}
    kept = STEPS[name][2]
    assert {kind: len(each) for kind, each in steps.items()} == {kind: int(kind == kept) for kind in steps}
    filled(engine)
    assert not any(steps.values())


def test_a_shape_that_comes_again_takes_what_was_prepared_and_the_latest_shapes_stay(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_steps, "MOST_MIXED", 2)
    engine, made = TorchPagedEngine(exported.folder, device="cpu"), []
    filled(engine)
    prompt, other, longer = "a prompt beside decoding rows", "a prompt beside candidates", "longer prompts"
    for name in (prompt, other, prompt, longer):
        prepared(engine, packed(name))
        made.append(list(engine.mixed_steps))
    first, second = made[1]
    assert made[0] == [first] and made[2] == [second, first] and made[3][0] == first and len(made[3]) == 2
    assert second not in engine.mixed_steps
