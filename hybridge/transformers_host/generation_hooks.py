"""The two places where generate() has to know what is under it: how much fits, and that states can go back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from hybridge.transformers_host.rows import TextBackend

_PREPARE, _STATEFUL = "_prepare_cache_for_generation", "_is_stateful"


def check_before_generating(model: Any, backend: TextBackend) -> Callable[[], None]:
    """Let ``model.generate`` raise RequestError for more rows or tokens than ``backend`` holds; returns the undo.

    A forward knows its own tokens only, while generate() knows its final length before it computes anything and calls
    one method of the model with it. A version of transformers without that method is refused later, in the step that
    does not fit.
    """
    prepare = getattr(model, _PREPARE, None)
    if prepare is None:
        return lambda: None
    signature = inspect.signature(prepare)

    @wraps(prepare)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        settings, batch, length = (given.get(name) for name in ("generation_config", "batch_size", "max_cache_length"))
        if settings is not None and batch is not None and length is not None:
            rows = batch * max(settings.num_beams or 1, settings.num_return_sequences or 1)
            backend.check_room(rows, length)
        return prepare(*args, **kwargs)

    setattr(model, _PREPARE, checked)
    return lambda: delattr(model, _PREPARE)


def allow_assisted_generation(model: Any) -> Callable[[], None]:
    """transformers refuses it for models with recurrent states, which its caches cannot roll back; returns the undo."""
    if not getattr(model, _STATEFUL, False):
        return lambda: None
    setattr(model, _STATEFUL, False)
    return lambda: delattr(model, _STATEFUL)
