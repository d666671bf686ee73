"""What the device's tables hold after an error or an interrupt between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hybridge.runtime.engines.device_sampling import DeviceSampling, SamplingMemory, Table
from hybridge.runtime.engines.packed_sampling import PackedSampling
from hybridge.runtime.sampling import Sampler, SamplingParams
from hybridge.trt_plugins.kernels.fused.sampling import SamplingProblem

ROWS, VOCAB = 3, 40


class CopiedTable(Table):
    """``there``: its copy."""

    def __init__(self, nbytes: int) -> None:
        self.here, self.there = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)

    def upload(self, begin: int = 0, end: int | None = None) -> None:
        self.there[begin:end] = self.here[begin:end]


class CopiedMemory(SamplingMemory[None]):
    def __init__(self) -> None:
        self.tables: list[CopiedTable] = []

    def table(self, nbytes: int) -> CopiedTable:
        self.tables.append(CopiedTable(nbytes))
        return self.tables[-1]

    def mapped(self, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    def prepared(
        self, problem: SamplingProblem, tables: Sequence[Table], results: Sequence[np.ndarray]
    ) -> Callable[[None], None]:
        return lambda logits: None

    def copies(self) -> list[np.ndarray]:
        return [table.there for table in self.tables]


@pytest.mark.parametrize(
    ("owner", "part", "call"),
    [(PackedSampling, "_sample", 2), (CopiedTable, "send", 1)],
    ids=["settings", "copy"],
)
@pytest.mark.parametrize("kind", [MemoryError, KeyboardInterrupt])
def test_after_an_error_the_same_samplings_are_written_again(
    owner: type, part: str, call: int, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    samplers = [Sampler(SamplingParams(temperature=1.0, seed=row, allowed_token_ids=[row])) for row in range(ROWS)]
    samplings = {row: sampler.draw(VOCAB) for row, sampler in enumerate(samplers)}
    expected, memory = CopiedMemory(), CopiedMemory()
    fresh, tested = (DeviceSampling(each, ROWS, VOCAB, lists=False) for each in (expected, memory))
    fresh.fill(samplings)
    fresh.enqueue(None)
    original, calls = getattr(owner, part), 0

    def failing(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise kind
        return original(*given)

    with monkeypatch.context() as patch, pytest.raises(kind):
        patch.setattr(owner, part, failing)
        tested.fill(samplings)
    tested.fill(samplings)
    tested.enqueue(None)
    for found, right in zip(memory.copies(), expected.copies(), strict=True):
        np.testing.assert_array_equal(found, right)
