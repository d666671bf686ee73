"""``gather_rows`` on the GPU: rows of a table in any order."""

from __future__ import annotations

import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused.gather_rows import GatherRows, plan
from tests.support.kernel_calls import run_plan

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [DType.INT64, DType.INT32])
@pytest.mark.parametrize(("rows", "width", "count"), [(1, 8, 3), (70, 24, 1), (300, 4104, 33)])
def test_rows_by_index(rows: int, width: int, count: int, dtype: DType) -> None:
    torch.manual_seed(0)
    table = torch.randn(rows, width, device="cuda").to(torch.bfloat16)
    indices = torch.randint(rows, (count,), device="cuda").to(getattr(torch, dtype.value))
    indices[-1] = rows - 1
    y = torch.full((count, width), float("nan"), dtype=torch.bfloat16, device="cuda")
    run_plan(plan(GatherRows(count, 2 * width, dtype), KernelDevice.current().traits), [table, indices], [y])
    assert torch.equal(y.cpu(), table.cpu()[indices.cpu().long()])
