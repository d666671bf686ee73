"""Arrays of repeated steps are those of single steps; copies are merged only where the result is the same."""

from collections.abc import Sequence

import numpy as np
import pytest

from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.scheduler import StepPlan
from hybridge.runtime.serving.executor import independent
from hybridge.runtime.serving.packing import packed_inputs
from hybridge.runtime.serving.step_packer import StepPacker
from tests.runtime.serving.toy_loop import make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID, PURE_MAMBA


@pytest.mark.parametrize("layers", [HYBRID, PURE_MAMBA], ids=str)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("rows", "pad_to"), [(3, 1), (6, 4)])
def test_arrays_of_repeated_steps_are_those_of_single_steps(
    layers: Sequence[str], ahead: bool, rows: int, pad_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, engine = toy_loop(layers, pad_to=pad_to, ahead=ahead)
    pack, pack_ahead, repeated = StepPacker.pack, StepPacker.pack_ahead, list[bool]()

    def check(plan: StepPlan, found: PackedInputs, ahead: bool = False) -> PackedInputs:
        fresh = packed_inputs(plan, loop.scheduler.sequences, loop.scheduler.manager, engine)
        for field, expected in vars(fresh).items():
            if not (ahead and field == "input_ids"):
                np.testing.assert_array_equal(getattr(found, field), expected, err_msg=field)
        repeated.append(ahead) if plan.repeats else None
        return found

    monkeypatch.setattr(StepPacker, "pack", lambda self, plan: check(plan, pack(self, plan)))
    monkeypatch.setattr(StepPacker, "pack_ahead", lambda self, plan: check(plan, pack_ahead(self, plan), True))
    for row in range(rows):
        loop.add(make_request([row] * (1 + row), 40 + 3 * row))
    run_all(loop)
    assert len(repeated) > 30 and any(repeated) == ahead


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(0, 1), (0, 2)],
        [(0, 1), (1, 2), (2, 3)],
        [(0, 1), (2, 1)],
        [(0, 1), (2, 0), (0, 3)],
        [(0, 1), (1, 2), (0, 3), (3, 0)],
    ],
)
def test_runs_of_copies_equal_copies_in_order(pairs):
    expected, found = list(range(5)), np.arange(5)
    for source, target in pairs:
        expected[target] = expected[source]
    for sources, targets in independent(pairs):
        assert not set(sources) & set(targets) and len(set(targets)) == len(targets)
        found[targets] = found[sources]
    assert found.tolist() == expected
