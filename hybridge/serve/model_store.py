"""The models by name: loaded on demand within a memory budget, unloaded when idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hybridge.artifact.errors import HybridgeError, SettingError
from hybridge.serve.errors import NOT_FOUND, OVERLOADED, ApiError
from hybridge.serve.served_model import ServedModel, estimated_bytes, loading_error, open_model
from hybridge.serve.settings import ModelSettings

# Retry-After where all loaded models are in use.
_BUSY_SECONDS = 10


@dataclass(eq=False)
class _Entry:
    """``leases``: requests that use the model. ``idle``: the timer that unloads it."""

    settings: ModelSettings
    model: ServedModel | None = None
    leases: int = 0
    used: float = 0.0
    idle: asyncio.TimerHandle | None = None


class Lease:
    """A loaded model that stays loaded until ``release``."""

    def __init__(self, model: ServedModel, release: Callable[[], None]) -> None:
        self.model = model
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """End the lease; calling it twice is allowed."""
        if self._release is not None:
            self._release()
            self._release = None


class ModelStore:
    """All methods are called from one event loop."""

    def __init__(
        self,
        models: Sequence[ModelSettings],
        budget: int | None,
        idle_timeout: float,
        report: Callable[[str, BaseException], None],
    ) -> None:
        """``budget``: bytes of all loaded models, None for no limit. ``report`` gets models that fail to load.

        SettingError for a name that is given twice.
        """
        self._entries: dict[str, _Entry] = {}
        for settings in models:
            if settings.name in self._entries:
                raise SettingError(f"model: expected each name once, found {settings.name!r} again: rename one")
            self._entries[settings.name] = _Entry(settings)
        self._budget, self._idle_timeout, self._report = budget, idle_timeout, report
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def names(self) -> list[str]:
        """The names of all models, loaded or not."""
        return list(self._entries)

    @property
    def loaded(self) -> list[ServedModel]:
        """The models in memory."""
        return [entry.model for entry in self._entries.values() if entry.model is not None]

    async def preload(self) -> None:
        """Load the models that are loaded at the start, and compute a token with each; errors as of AsyncLLM."""
        for entry in self._entries.values():
            if entry.settings.preload:
                async with self._changing:
                    try:
                        await self._load(entry)
                    except ApiError as error:
                        raise SettingError(
                            f"models_memory_bytes: expected room for all models that are loaded at the start, found "
                            f"too little for {entry.settings.name}: raise it, or set preload of fewer models"
                        ) from error

    async def lease(self, name: str, seconds: float | None = None) -> Lease:
        """The model ``name``, loaded if it is not. ApiError: unknown, no room, or it cannot be loaded.

        asyncio.TimeoutError when it is not loaded within ``seconds``; it loads on.
        """
        entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(self._entries)
            raise ApiError(
                404, f"model: expected one of {known}, found {name!r}", NOT_FOUND, "model_not_found", "model"
            )
        if entry.model is None:
            # A client's disconnect must not cancel the loading.
            await asyncio.wait_for(asyncio.shield(self._task(self._load_on_demand(entry))), seconds)
        if entry.model is None or self._closed:
            raise ApiError(503, f"model {name}: it was unloaded: try again", OVERLOADED, retry_after=1)
        entry.leases += 1
        if entry.idle is not None:
            entry.idle.cancel()
            entry.idle = None
        return Lease(entry.model, lambda: self._released(entry))

    async def ready(self) -> bool:
        """Whether every model that is loaded at the start can compute a token, tried again after an error."""
        for entry in self._entries.values():
            if not entry.settings.preload:
                continue
            if entry.model is None:
                return False
            if entry.model.failed:
                try:
                    await asyncio.wait_for(entry.model.check(), _BUSY_SECONDS)
                except (HybridgeError, asyncio.TimeoutError):
                    return False
        return not self._closed

    async def close(self) -> None:
        """Unload all models, which ends their requests."""
        self._closed = True
        async with self._changing:
            for entry in self._entries.values():
                await self._unload(entry)

    async def _load_on_demand(self, entry: _Entry) -> None:
        async with self._changing:
            if entry.model is not None or self._closed:
                return
            try:
                await self._load(entry)
            except HybridgeError as error:
                self._report(entry.settings.name, error)
                raise loading_error(entry.settings.name, error) from error
            entry.used = time.monotonic()
            self._unload_when_idle(entry)

    async def _load(self, entry: _Entry) -> None:
        if self._budget is not None:
            await self._make_room(entry, self._budget)
        event_loop = asyncio.get_running_loop()
        model = await event_loop.run_in_executor(None, open_model, entry.settings)
        try:
            await model.check()
        except BaseException:
            await event_loop.run_in_executor(None, model.close)
            raise
        entry.model = model

    async def _make_room(self, entry: _Entry, budget: int) -> None:
        """Unload idle models, least recently used first; ApiError when that is not enough."""
        need = await asyncio.get_running_loop().run_in_executor(None, estimated_bytes, entry.settings)
        if need > budget:
            raise SettingError(
                f"models_memory_bytes: expected at least the {need} bytes that {entry.settings.name} needs, found "
                f"{budget}: raise it, or set memory_bytes of the model"
            )
        while sum(model.nbytes for model in self.loaded) + need > budget:
            unused = [
                each
                for each in self._entries.values()
                if each.model is not None and not each.leases and not each.settings.preload
            ]
            if not unused:
                raise ApiError(
                    503,
                    f"model {entry.settings.name}: the memory is in use by other models: try again later",
                    OVERLOADED,
                    "no_memory",
                    retry_after=_BUSY_SECONDS,
                )
            await self._unload(min(unused, key=lambda each: each.used))

    async def _unload(self, entry: _Entry) -> None:
        model, entry.model = entry.model, None
        if model is not None:
            await asyncio.get_running_loop().run_in_executor(None, model.close)

    def _released(self, entry: _Entry) -> None:
        entry.leases -= 1
        entry.used = time.monotonic()
        if not entry.leases:
            self._unload_when_idle(entry)

    def _unload_when_idle(self, entry: _Entry) -> None:
        if entry.settings.preload or self._closed:
            return
        if entry.idle is not None:
            entry.idle.cancel()
        entry.idle = asyncio.get_running_loop().call_later(
            self._idle_timeout, lambda: self._task(self._unload_idle(entry))
        )

    async def _unload_idle(self, entry: _Entry) -> None:
        async with self._changing:
            if not entry.leases:
                await self._unload(entry)

    def _task(self, work: object) -> asyncio.Task[None]:
        """Start ``work``, a coroutine, and keep a reference until it ends."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
