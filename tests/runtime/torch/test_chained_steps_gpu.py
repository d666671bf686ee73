"""Steps that are fed on the GPU: tokens are those of steps that the host feeds, and rows that end stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.artifact.dtypes import DType
from hybridge.artifact.names import INPUT_IDS, SEQ_LENS, SLOT_MAPPING, STATE_INDICES
from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.device_sampling import ChosenTokens
from hybridge.runtime.engines.equal_rows import EqualRows
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.row_feeding import RowFeeding
from hybridge.runtime.generation import Request
from hybridge.runtime.sampling import AllowedTokens, Sampler, SamplingParams, TokenSampling
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.packing import padded
from hybridge.runtime.serving.request import ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.serving.toy_loop import answers, run_all
from tests.runtime.torch.test_paged_gpu import exported
from tests.runtime.torch.test_paged_kernel_calls import BLOCK
from tests.runtime.toy_ahead_engine import fed
from tests.support.announced import announced_thirds
from tests.support.artifacts import ArtifactCache
from tests.support.thirds import Thirds

pytestmark = pytest.mark.gpu
ROWS, PROMPT, STEPS = 5, 6, 12


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("stride", [4, 8, 32])
def test_the_kernel_feeds_rows_that_go_on(stride: int, copies: bool) -> None:
    device, rows = TorchDevice("cuda"), 70
    rng = np.random.default_rng(stride)
    tokens = rng.integers(-1, 6, rows).astype(np.int32)
    stops = [rng.choice(6, rng.integers(0, 4), replace=False).tolist() for _ in range(rows - 3)]
    host, _ = device.mapped(rows * stride // 4, dtype=torch.int32)
    host.numpy()[:: stride // 4] = tokens
    count = np.arange(rows, dtype=np.int32)
    ids, table, some = np.zeros(rows - 3, np.int64), np.zeros((rows - 3, 1), np.int32), count[:-3]
    inputs = padded(PackedInputs(ids, ids, count[:-2], some + 7, table, some + 3, some + 3, some), 3)
    names = (INPUT_IDS, SEQ_LENS, SLOT_MAPPING, STATE_INDICES)
    sizes = [len(getattr(inputs, name).tobytes()) for name in names]
    ends = np.cumsum([-(-size // 16) * 16 for size in sizes]).tolist()
    here = device.pinned(ends[-1], dtype=torch.uint8)
    memory = torch.full((ends[-1],), 0xFF, dtype=torch.uint8, device="cuda")
    there = {}
    for name, size, end in zip(names, sizes, [0, *ends], strict=False):
        array = getattr(inputs, name)
        here[end : end + size] = torch.from_numpy(array).view(torch.uint8)
        there[name] = memory[end : end + size].view(torch.from_numpy(array).dtype)
    if not copies:
        memory.copy_(here)
    feeding, sources = RowFeeding(device, rows), rng.integers(-1, rows, rows - 3).tolist()
    feeding.tables.fill(ChosenTokens(host.data_ptr(), stride), [[99] * 16] * rows, range(rows))
    feeding.tables.fill(ChosenTokens(host.data_ptr(), stride), stops, sources)
    torch.cuda.synchronize()
    with device.active():
        feeding.enqueue(there, (here, memory) if copies else ())
    device.synchronize()
    expected = fed(inputs, tokens.tolist(), Feeding(stops, {}, sources))
    for name in names:
        found = there[name].cpu().numpy()
        goes_on = expected.seq_lens > 0  # padding rows are fed nothing that matters
        where = goes_on if name == INPUT_IDS else slice(None)
        np.testing.assert_array_equal(found[where], getattr(expected, name)[where], err_msg=name)


def samplings(samples: bool, position: int) -> dict[int, TokenSampling]:
    if not samples:
        return {}
    params = [SamplingParams(temperature=1.5, seed=row, top_k=20) for row in range(ROWS - 1)]
    return {row: Sampler(each).draw(1)._replace(position=position) for row, each in enumerate(params)}


def is_new(tokens: list[list[int]], step: int, row: int) -> bool:
    """Whether the token of ``row`` at ``step`` is the first of its kind in the row."""
    return all(before[row] != tokens[step][row] for before in tokens[:step])


@pytest.mark.parametrize("samples", [False, True])
def test_a_chain_computes_what_single_steps_do(samples: bool, artifacts: ArtifactCache) -> None:
    engine = TorchPagedEngine(exported(artifacts).folder, "cuda", chains_steps=True)
    prompt = np.random.default_rng(1).integers(0, engine.config.vocab_size, (ROWS, PROMPT))

    def begun() -> tuple[EqualRows, list[int]]:
        pools = EqualRows(engine, ROWS, PROMPT + STEPS + 2, BLOCK)
        engine.fill_pools(0.0)
        return pools, [token or 0 for token in engine.launch(pools.inputs(prompt, 0)).best_tokens()]

    def inputs(pools: EqualRows, tokens: list[int], step: int) -> PackedInputs:
        return padded(pools.inputs(np.array(tokens)[:, None], PROMPT + step), engine.padded_rows(ROWS) - ROWS)

    pools, tokens = begun()
    single, states = [], []
    for step in range(STEPS):
        result = engine.launch(inputs(pools, tokens, step), samplings(samples, step))
        tokens = [token or 0 for token in result.best_tokens()[:ROWS]]
        for row, sampled in result.sampled(samplings(samples, step)).items():
            assert not isinstance(sampled, Exception)
            tokens[row] = sampled[0]
        single.append(tokens)
        states.append({spec.name: engine.read_pool(spec.name).copy() for spec in engine.config.bindings.states})

    # One row ends early, with a token that it has not had before; the state that it leaves is the one of that step.
    end, ended = max((step, row) for row in range(ROWS) for step in range(STEPS - 1) if is_new(single, step, row))
    assert end > 1
    stops: list[set[int]] = [set() for _ in range(ROWS)]
    stops[ended] = {single[end][ended]}
    pools, tokens = begun()
    result = engine.launch(inputs(pools, tokens, 0), samplings(samples, 0))
    for step in range(1, STEPS):
        feeding = Feeding(stops, samplings(samples, step))
        after = engine.launch_next(result, inputs(pools, [0] * ROWS, step), feeding)
        assert after is not None
        going_on = [row for row in range(ROWS) if row != ended or step - 1 <= end]
        fed_tokens = result.fed_tokens()
        assert [fed_tokens[row] for row in going_on] == [single[step - 1][row] for row in going_on], step
        result = after
    found = result.fed_tokens()[:ROWS]
    assert [token for row, token in enumerate(found) if row != ended] == [
        token for row, token in enumerate(single[-1]) if row != ended
    ]
    for spec in engine.config.bindings.states:
        if spec.grows:
            continue
        pool = engine.read_pool(spec.name)
        for row in range(ROWS):
            expected = states[end if row == ended else -1][spec.name]
            np.testing.assert_array_equal(pool[row], expected[row], err_msg=f"{spec.name} of row {row}")


@pytest.mark.parametrize(("samples", "masks"), [(False, None), (True, None), (True, Thirds), (True, announced_thirds)])
@pytest.mark.parametrize("family", ["nemotron_h", "qwen3_next"])
def test_served_answers_are_those_without_a_chain(
    family: str, samples: bool, masks: Callable[[], AllowedTokens] | None, artifacts: ArtifactCache
) -> None:
    """More requests than rows, so that prompts begin beside rows that decode."""
    folder, found = exported(artifacts, DType.FLOAT32, family).folder, []
    for chains_steps in (True, False):
        engine = TorchPagedEngine(folder, "cuda", chains_steps)
        loop = ServingLoop(engine, ServingSettings(max_rows=8, max_seq_len=200, max_tokens=24), (1, 2, 3), None)
        mixed, launch_next = list[bool](), engine.launch_next

        def counted(result, inputs, feeding, launch_next=launch_next, mixed=mixed):
            mixed.append(len(inputs.input_ids) > len(inputs.seq_lens))
            return launch_next(result, inputs, feeding)

        engine.launch_next = counted  # type: ignore[method-assign]
        rng = np.random.default_rng(3)
        for row in range(40):
            ids = tuple(rng.integers(0, engine.config.vocab_size, 5 + row % 12).tolist())
            given: dict[str, Any] = {"temperature": 1.0, "seed": row} if row % 2 and samples else {}
            params = SamplingParams(**given, allowed_tokens=masks if row % 3 else None)
            loop.add(ServingRequest(Request(ids, params, 10 + row)))
        found.append(answers(run_all(loop)))
        replayed = [step.decode.repeated.is_replayed for step in engine.chained_steps.values()]
        assert any(replayed) and any(mixed) and not all(mixed) if chains_steps else not replayed
        engine.close()
    assert found[0] == found[1]
