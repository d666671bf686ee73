"""``most_likely`` on the GPU: the first of the largest logits, and no token where logits are not finite."""

from __future__ import annotations

import pytest
import torch

from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused.most_likely import MostLikely, plan
from tests.support.kernel_calls import run_plan

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("vocab", [1, 31, 2048, 2049, 131072, 151937])
def test_the_first_of_the_largest(vocab: int) -> None:
    torch.manual_seed(vocab)
    # Few different numbers: many logits are equal, negative zeros among them.
    logits = torch.randn(9, vocab, device="cuda").mul_(2).round_()
    logits[1], logits[2] = -1e30, 0.0
    logits[3, : vocab // 2], logits[4, vocab // 2] = float("-inf"), 3e38
    logits[8, ::2], logits[8, 1::2] = -0.0, 0.0
    expected = [row.index(max(row)) for row in logits.tolist()]
    # Not finite: NaN, +inf, and -inf alone.
    logits[5, vocab - 1], logits[6, vocab // 3], logits[7] = float("nan"), float("inf"), float("-inf")
    expected[5:8] = [-1, -1, -1]
    tokens = torch.full((2, 9), -7, dtype=torch.int64, device="cuda")
    planned = plan(MostLikely(9, vocab), KernelDevice.current().traits)
    for _ in range(3):  # the kernel leaves its counters zero
        run_plan(planned, [logits], [*tokens])
        assert tokens.tolist() == [expected, expected]
