"""Models are loaded on demand within a budget, and unloaded when they are idle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.errors import EngineError, SettingError
from hybridge.serve import model_store
from hybridge.serve.errors import ApiError
from hybridge.serve.model_store import ModelStore
from hybridge.serve.settings import ModelSettings


class FakeModel:
    """``failure``: of the engine, when a token is computed."""

    def __init__(self, settings: ModelSettings, failure: Exception | None = None) -> None:
        self.name, self.nbytes, self.failed, self.closed = settings.name, 10, False, False
        self._failure = failure

    async def check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self.failed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeModel]:
    """All models that were opened, each of 10 bytes; that of the name "broken" computes nothing."""
    found: list[FakeModel] = []

    def open_model(settings: ModelSettings) -> FakeModel:
        failure = EngineError("no") if settings.name == "broken" else None
        found.append(FakeModel(settings, failure))
        return found[-1]

    monkeypatch.setattr(model_store, "open_model", open_model)
    monkeypatch.setattr(model_store, "estimated_bytes", lambda settings: 10)
    return found


def run(
    work: Callable[[ModelStore], Awaitable[Any]], budget: int | None = None, idle: float = 60, preload: str = ""
) -> list[str]:
    """Run ``work``; returns the names of the models whose failures were reported."""
    reported: list[str] = []

    async def main() -> None:
        models = [ModelSettings(name, Path(name), preload=name == preload) for name in ("a", "b", "c", "broken")]
        store = ModelStore(models, budget, idle, lambda name, error: reported.append(name))
        await store.preload()
        await asyncio.wait_for(work(store), 30)
        await store.close()
        assert store.loaded == []

    asyncio.run(main())
    return reported


def names(store: ModelStore) -> list[str]:
    return [model.name for model in store.loaded]


def test_the_model_that_was_unused_longest_makes_room(opened: list[FakeModel]) -> None:
    async def work(store: ModelStore) -> None:
        leases = [await store.lease("a"), await store.lease("b")]
        with pytest.raises(ApiError) as full:
            await store.lease("c")
        assert full.value.status_code == 503 and full.value.retry_after
        leases[1].release()
        leases[0].release()
        leases[0].release()  # allowed
        (await store.lease("c")).release()
        assert names(store) == ["a", "c"] and [model.closed for model in opened] == [False, True, False]
        assert (await store.lease("a")).model is opened[0]

    run(work, budget=25)


def test_a_model_is_opened_once_for_all_that_wait_for_it(opened: list[FakeModel]) -> None:
    async def work(store: ModelStore) -> None:
        waiting = [asyncio.ensure_future(store.lease("a")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # its client left; the others still get the model
        leases = await asyncio.gather(*waiting[1:])
        assert {lease.model for lease in leases} == set(opened) and len(opened) == 1

    run(work)


def test_a_client_does_not_wait_longer_than_it_wants(opened: list[FakeModel]) -> None:
    async def work(store: ModelStore) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await store.lease("a", 0)
        # Another one waits for the same loading.
        (await store.lease("a", 30)).release()
        assert len(opened) == 1

    run(work)


def test_idle_models_are_unloaded_unless_they_were_preloaded(opened: list[FakeModel]) -> None:
    async def work(store: ModelStore) -> None:
        assert await store.ready()
        lease = await store.lease("b")
        (await store.lease("c")).release()
        (await store.lease("a")).release()
        while "c" in names(store):
            await asyncio.sleep(0.01)
        assert names(store) == ["a", "b"]
        lease.release()
        while "b" in names(store):
            await asyncio.sleep(0.01)
        assert (await store.lease("b")).model is opened[-1] and len(opened) == 4

    run(work, idle=0.02, preload="a")


def test_a_model_that_computes_nothing_is_refused_and_closed(opened: list[FakeModel]) -> None:
    async def work(store: ModelStore) -> None:
        for _ in range(2):
            with pytest.raises(ApiError) as failed:
                await store.lease("broken")
            assert failed.value.status_code == 503 and "log" in failed.value.message
        with pytest.raises(ApiError) as unknown:
            await store.lease("d")
        assert unknown.value.status_code == 404
        assert all(model.closed for model in opened) and len(opened) == 2

    assert run(work) == ["broken", "broken"]
    with pytest.raises(EngineError):
        run(work, preload="broken")


def test_readiness_is_tried_again_after_a_failed_step(opened: list[FakeModel]) -> None:
    async def work(store: ModelStore) -> None:
        opened[0].failed, opened[0]._failure = True, EngineError("no")
        assert not await store.ready()
        opened[0]._failure = None
        assert await store.ready() and not opened[0].failed

    run(work, preload="a")


def test_a_budget_that_no_model_fits_into(opened: list[FakeModel]) -> None:
    with pytest.raises(SettingError, match="models_memory_bytes"):
        run(lambda store: asyncio.sleep(0), budget=9, preload="a")


def test_the_estimate_counts_weights_and_pools(demo: ModelSettings) -> None:
    from hybridge.serve.served_model import estimated_bytes

    weights = sum(path.stat().st_size for path in demo.path.rglob("*.safetensors"))
    assert estimated_bytes(replace(demo, memory_bytes=1000)) == 2 * weights + 1000
