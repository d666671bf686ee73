"""Pinned prefixes, sessions across restarts and the tier in host memory, with a real model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, RequestError, SettingError
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.runtime.generation import Generation
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.pinned import PrefixEvictedError
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.prefix_cache.oracle import Oracle, check_all, poison
from tests.runtime.serving.conftest import MAX_SEQ, ROWS, Opened
from tests.support.artifacts import ArtifactCache

RNG = np.random.default_rng(5)
SYSTEM, OTHER, THIRD = (RNG.integers(3, 97, 41).tolist() for _ in range(3))


@pytest.fixture(params=["onnxruntime", "torch"])
def opened(folder: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """Opens the artifact with a radix tree and room for ``sequences`` of full length and ``slots`` states."""
    with ExitStack() as open_now:

        def open_llm(
            sequences: int = 4, slots: int = 12, block_size: int = 16, kind: str | None = None, **cache: object
        ) -> LLM:
            engine = create_paged_engine(folder, kind or request.param, EngineOptions(threads=1))
            blocks = sequences * (-(-MAX_SEQ // block_size) + 1)
            memory = blocks * engine.block_bytes(block_size) + slots * engine.slot_bytes
            chosen = PrefixCacheSettings(cached_states=max(0, slots - ROWS), **cache)  # type: ignore[arg-type]
            settings = ServingSettings(block_size, memory_bytes=memory, prefix_cache=chosen)
            return open_now.enter_context(LLM(folder, engine=engine, serving=settings))

        yield open_llm


def ask(llm: LLM, prompt: list[int], new: int = 5) -> Generation:
    poison(llm.loop, llm.engine)
    return llm.generate(prompt, max_new_tokens=new)


def test_a_pinned_prefix_outlives_everything_else(opened: Opened, oracle: Oracle) -> None:
    llm = opened(sequences=3, slots=4)
    prefix = llm.cache_prefix(SYSTEM, name="system")
    assert (prefix.name, prefix.length) == ("system", 41)
    assert llm.cache_prefix(SYSTEM, name="system") is prefix
    rng = np.random.default_rng(0)
    for _ in range(6):
        ask(llm, rng.integers(3, 97, 60).tolist())
        check_all(llm.loop, llm.engine, oracle)
    answer = ask(llm, [*SYSTEM, 7, 8])
    assert answer.cached_tokens == 41
    assert answer.token_ids == opened().generate([*SYSTEM, 7, 8], max_new_tokens=5).token_ids
    llm.drop_prefix("system")
    assert llm.prefix_cache_report().pinned == ()
    while llm.loop.prefix_cache.evict_kv():
        pass
    assert ask(llm, [*SYSTEM, 7, 8]).cached_tokens == 0


@pytest.mark.parametrize("opened", ["onnxruntime"], indirect=True)
def test_prefixes_come_from_a_file(opened: Opened, tmp_path: Path) -> None:
    file = tmp_path / "prefixes.json"
    file.write_text(json.dumps({"prefixes": {"a": SYSTEM, "b": OTHER}}), encoding="utf-8")
    llm = opened()
    assert [prefix.name for prefix in llm.cache_prefixes(file)] == ["a", "b"]
    assert ask(llm, [*OTHER, 5]).cached_tokens == 41
    file.write_text(json.dumps({"prefixes": {"a": 5}}), encoding="utf-8")
    with pytest.raises(RequestError, match="expected text, token ids or messages"):
        llm.cache_prefixes(file)
    file.write_text(json.dumps({"prefixes": {"c": SYSTEM, "d": [5, -1]}}), encoding="utf-8")
    with pytest.raises(RequestError, match="prefix 'd': expected token ids from 0 to 96, found -1"):
        llm.cache_prefixes(file)


@pytest.mark.parametrize("opened", ["onnxruntime"], indirect=True)
def test_a_prefix_that_leaves_no_room_is_refused(opened: Opened) -> None:
    llm = opened(sequences=1, slots=2)
    with pytest.raises(RequestError, match="expected one that leaves"):
        llm.cache_prefix(SYSTEM)
    for name in ("none", 5):
        with pytest.raises(RequestError, match="expected one of the prefixes"):
            llm.drop_prefix(name)  # type: ignore[arg-type]
    roomy = opened()
    roomy.cache_prefix(SYSTEM, "a")
    with pytest.raises(RequestError, match="found one of another prefix"):
        roomy.cache_prefix(OTHER, "a")


@pytest.mark.parametrize("block_size", [16, 5])
def test_a_session_continues_after_a_restart(opened: Opened, oracle: Oracle, tmp_path: Path, block_size: int) -> None:
    first = opened()
    answer = ask(first, SYSTEM)
    saved = first.save_session(tmp_path / "chat.session", answer)
    # The last token of an answer is never fed.
    history = [*SYSTEM, *answer.token_ids]
    assert saved.token_ids == tuple(history[:-1])
    whole = ask(first, [*history, 9, 10])
    # Another engine can continue it, too.
    second = opened(block_size=block_size, kind="torch" if first.engine.name == "onnxruntime" else "onnxruntime")
    poison(second.loop, second.engine)
    assert second.load_session(tmp_path / "chat.session").length == len(history) - 1
    check_all(second.loop, second.engine, oracle)
    again = ask(second, [*history, 9, 10])
    assert again.cached_tokens == len(history) - 1 and again.token_ids == whole.token_ids
    assert [path.name for path in tmp_path.iterdir()] == ["chat.session"]


@pytest.mark.parametrize("opened", ["onnxruntime"], indirect=True)
def test_a_damaged_or_foreign_session_is_refused(opened: Opened, tmp_path: Path, artifacts: ArtifactCache) -> None:
    llm = opened()
    file = tmp_path / "chat.session"
    llm.save_session(file, ask(llm, SYSTEM))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    for bad, reason in (
        (bytes(data), "checksum"),
        (bytes(data[:-40]), "bytes, found"),
        (b"no session", "something else"),
    ):
        file.write_bytes(bad)
        with pytest.raises(RequestError, match=reason):
            llm.load_session(file)
    other = artifacts.get("qwen3_next", "float32", layout="paged", max_batch_size=ROWS, max_seq_len=MAX_SEQ).folder
    with LLM(other, serving=ServingSettings(prefix_cache="radix")) as foreign:
        answer = foreign.generate(SYSTEM, max_new_tokens=2)
        foreign.save_session(file, answer)
    with pytest.raises(RequestError, match="found one of others"):
        llm.load_session(file)
    with pytest.raises(RequestError, match=r"expected tokens that are in the prefix cache, found \d+ that are not"):
        llm.save_session(file, OTHER)


def test_a_session_that_does_not_fit_takes_nothing(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = opened()
    file = tmp_path / "chat.session"
    llm.save_session(file, ask(llm, SYSTEM))
    llm.loop.prefix_cache.tree.clear()

    def refused(*_: object) -> None:
        raise EngineError("told to fail")

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "swap_in", refused)
        with pytest.raises(RequestError, match="does not fit this artifact"):
            llm.load_session(file)
    llm.loop.scheduler.check_integrity()
    assert not llm.loop.scheduler.manager.pool.used and llm.load_session(file).length == 45
    small = opened(sequences=1, slots=1)
    with monkeypatch.context() as patch:
        patch.setattr(small.loop.prefix_cache, "evict", lambda *_: False)
        with pytest.raises(RequestError, match="increase memory_bytes"):
            small.load_session(file)
    small.loop.scheduler.check_integrity()


@pytest.mark.parametrize("family", ["qwen3", "mamba2"])
@pytest.mark.parametrize("kind", ["onnxruntime", "torch"])
def test_sessions_and_host_memory_of_one_kind_of_layer(
    artifacts: ArtifactCache, tmp_path: Path, family: str, kind: str
) -> None:
    folder = artifacts.get(family, "float32", layout="paged", max_batch_size=ROWS, max_seq_len=MAX_SEQ).folder
    settings = ServingSettings(prefix_cache=PrefixCacheSettings(host_bytes=1 << 20))
    with LLM(folder, kind, serving=settings, threads=1) as llm:
        answer = llm.generate(SYSTEM, max_new_tokens=4)
        history = [*SYSTEM, *answer.token_ids]
        whole = llm.generate([*history, 5], max_new_tokens=4)
        llm.loop.prefix_cache.tree.clear()
        again = llm.generate([*history, 5], max_new_tokens=4)
        assert again.cached_tokens >= len(history) - 1 and again.token_ids == whole.token_ids
        saved = llm.save_session(tmp_path / "chat.session", again)
        whole = llm.generate([*saved.token_ids, 7], max_new_tokens=4)
    with LLM(folder, kind, serving=settings, threads=1) as llm:
        assert llm.load_session(tmp_path / "chat.session") == saved
        again = llm.generate([*saved.token_ids, 7], max_new_tokens=4)
        assert again.cached_tokens == saved.length and again.token_ids == whole.token_ids
        llm.loop.scheduler.check_integrity()


def test_states_of_disturbed_prompts_are_exact(opened: Opened, oracle: Oracle) -> None:
    llm, rng = opened(sequences=20, slots=40, decode_interval=3), np.random.default_rng(3)
    prompts = [[*SYSTEM[:length], *rng.integers(3, 97, 5).tolist()] for length in (41, 41, 20, 41, 30)]
    first = llm.generate(prompts, max_new_tokens=7)
    check_all(llm.loop, llm.engine, oracle)
    second = llm.generate(prompts, max_new_tokens=7)
    check_all(llm.loop, llm.engine, oracle)
    assert [each.token_ids for each in second] == [each.token_ids for each in first]
    assert all(each.cached_tokens >= len(prompt) - 5 for prompt, each in zip(prompts, second, strict=True))
    llm.loop.scheduler.check_integrity()


def test_evicted_prefixes_return_from_host_memory(opened: Opened, oracle: Oracle) -> None:
    llm = opened(sequences=2, slots=3, host_bytes=1 << 20)
    expected = {tuple(p): opened().generate([*p, 5], max_new_tokens=3).token_ids for p in (SYSTEM, OTHER, THIRD)}
    for _ in range(3):
        for prompt in (SYSTEM, OTHER, THIRD):
            assert ask(llm, [*prompt, 5], 3).token_ids == expected[tuple(prompt)]
            check_all(llm.loop, llm.engine, oracle)
            llm.loop.scheduler.check_integrity()
    report = llm.prefix_cache_report()
    assert report.counts.restored_states > 0 and 0 < report.host_bytes <= 1 << 20
    assert ask(llm, [*SYSTEM, 5], 3).cached_tokens == 41
    without = opened(sequences=2, slots=3)
    for prompt in (SYSTEM, OTHER, THIRD, SYSTEM):
        last = ask(without, [*prompt, 5], 3)
    assert last.cached_tokens < 41


def test_a_session_is_saved_from_host_memory(opened: Opened, oracle: Oracle, tmp_path: Path) -> None:
    """A session can be saved after its memory was evicted from the device."""
    llm = opened(host_bytes=1 << 20)
    answer = ask(llm, SYSTEM)
    llm.loop.prefix_cache.tree.clear()
    assert not llm.prefix_cache_report().states
    assert llm.save_session(tmp_path / "chat.session", answer).length == len(SYSTEM) + 4
    again = opened()
    poison(again.loop, again.engine)
    assert again.load_session(tmp_path / "chat.session").length == len(SYSTEM) + 4
    check_all(again.loop, again.engine, oracle)


@pytest.mark.parametrize(("states", "most"), [("int8", 1e-2), ("fp8", 6e-2)])
def test_states_in_8_bits_come_back_nearly_exact(opened: Opened, oracle: Oracle, states: str, most: float) -> None:
    llm = opened(host_bytes=1 << 20, host_states=states)
    first = ask(llm, [*SYSTEM, 5], 3)
    held = llm.prefix_cache_report().state_bytes
    llm.loop.prefix_cache.tree.clear()
    report = llm.prefix_cache_report()
    exact = report.counts.spilled_states * llm.engine.slot_bytes
    states_on_host = report.host_bytes - report.counts.spilled_blocks * llm.loop.pools.block_bytes
    # Of this small model, a fifth are convolution states, which stay as they are.
    assert held == exact and exact / 3 < states_on_host < exact / 2
    again = ask(llm, [*SYSTEM, 5], 3)
    assert again.cached_tokens == 41 and again.token_ids == first.token_ids
    check_all(llm.loop, llm.engine, oracle, most)
    with pytest.raises(AssertionError, match="relative error"):
        check_all(llm.loop, llm.engine, oracle)
    with pytest.raises(SettingError, match="host_states: expected one of exact, int8, fp8"):
        PrefixCacheSettings(host_states="int4")


@pytest.mark.parametrize("opened", ["onnxruntime"], indirect=True)
def test_the_host_keeps_to_its_budget(opened: Opened) -> None:
    llm = opened(sequences=2, slots=2, host_bytes=40_000)
    rng = np.random.default_rng(2)
    for _ in range(8):
        ask(llm, rng.integers(3, 97, 50).tolist())
        assert llm.prefix_cache_report().host_bytes <= 40_000


def test_without_a_tree_there_is_nothing_to_control(folder: Path) -> None:
    with LLM(folder, serving=ServingSettings(prefix_cache="off")) as llm:
        with pytest.raises(RequestError, match="expected a prefix cache of kind 'radix'"):
            llm.cache_prefix(SYSTEM)
        with pytest.raises(RequestError, match="expected a prefix cache of kind 'radix'"):
            llm.prefix_cache_report()
    with pytest.raises(SettingError, match="kind: expected one of"):
        ServingSettings(prefix_cache="tree")


def test_tasks_pin_save_and_restore(folder: Path, tmp_path: Path) -> None:
    settings = ServingSettings(prefix_cache=PrefixCacheSettings(decode_interval=4))

    async def serve() -> None:
        async with AsyncLLM(folder, serving=settings) as llm:
            busy = llm.add(OTHER, SamplingParams(ignore_eos=True), max_new_tokens=40)
            prefix = await llm.cache_prefix(SYSTEM, "system")
            answer = await llm.generate([*SYSTEM, 9], max_new_tokens=4)
            assert prefix.length == answer.cached_tokens == 41
            saved = await llm.save_session(tmp_path / "chat.session", answer)
            file = tmp_path / "prefixes.json"
            file.write_text(json.dumps({"prefixes": {"system": SYSTEM, "other": OTHER}}), encoding="utf-8")
            assert [prefix.name for prefix in await llm.cache_prefixes(file)] == ["system", "other"]
            assert (await llm.prefix_cache_report()).pinned == ("system", "other")
            assert (await llm.generate([*OTHER, 9], max_new_tokens=1)).cached_tokens == 41
            await llm.drop_prefix("system")
            await busy.result()
        async with AsyncLLM(folder, serving=settings) as llm:
            assert await llm.load_session(tmp_path / "chat.session") == saved
            again = await llm.generate([*saved.token_ids, 5, 6], max_new_tokens=1)
            assert again.cached_tokens == saved.length
            with pytest.raises(RequestError, match="expected one of the prefixes"):
                await llm.drop_prefix("system")

    asyncio.run(serve())


@pytest.mark.parametrize("pushed_out", [2, 3])
def test_a_task_computes_its_prefix_again_when_others_push_it_out(folder: Path, pushed_out: int) -> None:
    async def serve() -> None:
        async with AsyncLLM(folder, serving=ServingSettings(prefix_cache="radix")) as llm:
            given, pinned = 0, llm._cache.pin

            def pin(*arguments: object) -> object:
                nonlocal given
                given += 1
                if given <= pushed_out:
                    raise PrefixEvictedError("others came first")
                return pinned(*arguments)  # type: ignore[arg-type]

            llm._cache.pin = pin  # type: ignore[method-assign, assignment]
            if pushed_out == 2:
                assert (await llm.cache_prefix(SYSTEM, "system")).length == 41
                assert (await llm.generate([*SYSTEM, 9], max_new_tokens=1)).cached_tokens == 41
            else:
                with pytest.raises(PrefixEvictedError):
                    await llm.cache_prefix(SYSTEM, "system")
            assert given == 3

    asyncio.run(serve())
