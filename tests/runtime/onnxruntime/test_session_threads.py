"""Sessions that run in turns: the threads of one must not take the processor from the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from hybridge.runtime.engines.factory import EngineOptions, create_dense_engine
from hybridge.runtime.engines.paged_factory import create_paged_engine
from tests.support.artifacts import ArtifactCache
from tests.support.deferred_rows import ROWS, Rows


@pytest.mark.parametrize("layout", ["dense", "paged"])
def test_threads_of_every_session_stop_when_a_run_ends(
    layout: str, artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = artifacts.get("nemotron_h", "float32", layout=layout).folder, list[ort.SessionOptions]()
    made = ort.InferenceSession

    def recorded(model: Any, options: ort.SessionOptions, **others: Any) -> ort.InferenceSession:
        found.append(options)
        return made(model, options, **others)

    monkeypatch.setattr(ort, "InferenceSession", recorded)
    if layout == "dense":
        create_dense_engine(folder, "onnxruntime", EngineOptions(threads=2))
    else:
        engine = create_paged_engine(folder, "onnxruntime", EngineOptions(threads=2))
        engine.prepare_rollback(ROWS, 3)
        rows = Rows(engine)
        engine.step(replace(rows.inputs([[1, 2, 3], [4], [5, 6]]), deferred=np.array([True, False, True])))
        engine.advance(np.array([2, 0, 1]))
    several = [options for options in found if options.intra_op_num_threads != 1]
    assert len(several) > 1
    for options in several:
        assert options.get_session_config_entry("session.force_spinning_stop") == "1"
