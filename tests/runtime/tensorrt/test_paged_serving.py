"""Serving on the paged TensorRT engine; its contexts compute the network that the parser makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.names import is_recurrent_state
from hybridge.runtime.engines.packed_rows import FP8, INT8, packed_rows
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from tests.support.artifacts import ArtifactCache

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

from tests.runtime.serving.engine_cases import check_disturbed_requests, check_speculated_tokens
from tests.runtime.tensorrt.paged_double import OpenedDouble, ParsedEngine, open_double, use_double

ROWS, MAX_SEQ = 3, 96
# Sizes that the plugins' kernels have.
HEADS = {"hybrid_override_pattern": "M*", "mamba_head_dim": 16, "ssm_state_size": 24, "head_dim": 64}


@pytest.fixture(scope="module")
def parsed(artifacts: ArtifactCache, tmp_path_factory: pytest.TempPathFactory) -> ParsedEngine:
    """A hybrid with plugins, whose pools have one buffer."""
    sizes = {"layout": "paged", "max_batch_size": ROWS, "max_seq_len": MAX_SEQ}
    folder = artifacts.get("nemotron_h", "bfloat16", HEADS, **sizes).folder
    return ParsedEngine(folder, tmp_path_factory.mktemp("engine"), plugins="on")


@pytest.fixture(scope="module")
def native(artifacts: ArtifactCache, tmp_path_factory: pytest.TempPathFactory) -> ParsedEngine:
    """A hybrid in native layers, whose pools have two buffers."""
    sizes = {"layout": "paged", "max_batch_size": ROWS, "max_seq_len": MAX_SEQ}
    folder = artifacts.get("nemotron_h", "float32", **sizes).folder
    return ParsedEngine(folder, tmp_path_factory.mktemp("engine"), plugins="off")


def poisoned(opened: OpenedDouble, blocks: Sequence[int], slots: Sequence[int]) -> None:
    """NaN in these blocks and slots of every pool, written as a copy that comes back from the host."""
    engine, copy = opened.engine, opened.engine.swap_out(blocks, slots)
    arrays = {name: np.full_like(array, np.nan) for name, array in engine.arrays_from_copy(copy).items()}
    engine.swap_in(engine.copy_from_arrays(arrays, len(blocks), len(slots)), blocks, slots)


@pytest.mark.slow
def test_disturbed_requests_get_the_tokens_of_each_alone(native: ParsedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_double(native, monkeypatch)
    check_disturbed_requests(opened.engine, lambda blocks, slots: poisoned(opened, blocks, slots))
    opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["replay", "snapshot"])
def test_speculated_tokens_are_those_of_plain_greedy(
    mode: str, artifacts: ArtifactCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {**HEADS, "hybrid_override_pattern": "M-*M"}
    folder = artifacts.get("nemotron_h", "bfloat16", large, layout="paged", max_batch_size=ROWS).folder
    drafts = ParsedEngine(folder, tmp_path, plugins="on", speculative_tokens=3, draft_states=mode)
    opened = open_double(drafts, monkeypatch)
    check_speculated_tokens(folder, opened.engine)
    # Every checked step and every advance of a size is captured once.
    assert any(size.tokens > size.rows for size, *_ in opened.engine.steps.captured)
    assert (opened.advance is None) is (mode == "snapshot")
    opened.close()


def test_requests_served_together_get_the_tokens_of_each_alone(
    parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened by its folder, as `hybridge run` opens it; with a prefix cache."""
    memory = use_double(parsed, monkeypatch)
    rng, sampling = np.random.default_rng(2), SamplingParams(ignore_eos=True)
    prompts = [rng.integers(3, 97, n).tolist() for n in (17, 5, 1, 30)]
    prompts.append(prompts[0] + [7, 8])
    room = PrefixCacheSettings(cached_states=8)
    serving = ServingSettings(memory_bytes=1 << 22, prefix_cache=room, max_tokens=24)
    with LLM(parsed.folder, engine="tensorrt", serving=serving) as llm:
        alone = [llm.generate(prompt, sampling, 4).token_ids for prompt in prompts]
        llm.reset_prefix_cache()
        together = [answer.token_ids for answer in llm.generate(prompts, sampling, 4)]
        again = llm.generate(prompts[-1], sampling, 4)
    assert together == alone and again.token_ids == alone[-1] and again.cached_tokens > 0
    memory.check_nothing_left()


@pytest.mark.slow
def test_a_session_comes_back_into_the_pools(
    native: ParsedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved by this engine and continued by ONNX Runtime."""
    use_double(native, monkeypatch)
    prompt, path = np.random.default_rng(8).integers(3, 97, 21).tolist(), tmp_path / "chat.session"
    settings = {"serving": ServingSettings(memory_bytes=1 << 22, prefix_cache=PrefixCacheSettings(cached_states=4))}
    with LLM(native.folder, engine="tensorrt", **settings) as llm:
        answer = llm.generate(prompt, max_new_tokens=4)
        llm.save_session(path, answer)
        history = [*prompt, *answer.token_ids, 9]
        expected = llm.generate(history, max_new_tokens=3)
    with LLM(native.folder, engine="onnxruntime", threads=1, **settings) as llm:
        assert llm.load_session(path).length == len(prompt) + 3
        found = llm.generate(history, max_new_tokens=3)
    assert found.token_ids == expected.token_ids and found.cached_tokens


@pytest.mark.parametrize("kind", [INT8, FP8])
def test_states_in_8_bits_come_back_as_rounded(
    kind: str, native: ParsedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_double(native, monkeypatch)
    engine, rng = opened.engine, np.random.default_rng(1)
    engine.allocate_pools(PoolSizes(3, 16, 3, num_packed=2, packed=kind))
    engine.fill_pools(0.0)
    before = engine.arrays_from_copy(engine.swap_out([0], [0, 1, 2]))
    states = {name: array for name, array in before.items() if array.shape[0] == 3}
    assert any(map(is_recurrent_state, states)) and not all(map(is_recurrent_state, states))
    for array in states.values():
        array[1] = rng.standard_normal(array[1].shape)
    engine.swap_in(engine.copy_from_arrays(before, 1, 3), [0], [0, 1, 2])
    engine.pack_slots([1], [0])
    engine.zero_slots([1])
    engine.packed_in(engine.packed_out(0), 1)
    engine.unpack_slots([1], [2])
    found = engine.arrays_from_copy(engine.swap_out([0], [0, 1, 2]))
    for name, array in states.items():
        expected = packed_rows(array[1], kind).unpacked() if is_recurrent_state(name) else array[1]
        np.testing.assert_array_equal(found[name][2], expected)
        assert not found[name][:2].any()
    opened.close()
