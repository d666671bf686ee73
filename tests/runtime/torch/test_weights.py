"""Constants on the device: one copy for equal bytes."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.runtime.engines.torch.weights import WeightStore

# A device that is not host memory; what lies there has no content.
ELSEWHERE = torch.device("meta")


def test_views_of_one_weight_share_a_copy() -> None:
    store, weight = WeightStore(Path(), ELSEWHERE), torch.arange(12.0).view(3, 4)
    whole, part = store.on_device(weight), store.on_device(weight[1:].t())
    assert (whole.device, whole.shape, whole.stride()) == (ELSEWHERE, weight.shape, weight.stride())
    assert (part.shape, part.stride(), part.storage_offset()) == ((4, 2), (1, 4), 4)
    assert store.memory_use() == {"weights": 48}


def test_the_address_of_a_constant_goes_to_no_other_one() -> None:
    """A constant of the graph itself is read again for each program: nothing else holds its bytes."""
    store, memory = WeightStore(Path(), ELSEWHERE), np.zeros(6, np.float32)
    owner = weakref.ref(memory)
    store.on_device(torch.from_numpy(memory))
    del memory
    gc.collect()
    assert owner() is not None
