"""The launches of a ``paged_attention`` call with rows of any length; needs no GPU."""

from __future__ import annotations

import pytest

from hybridge.trt_plugins.kernels.call import PackedRows
from hybridge.trt_plugins.kernels.ops import paged_attention
from tests.kernels.test_paged_attention_decode_plan import call_of
from tests.support.kernel_calls import H200


def test_tokens_of_as_many_rows_need_no_prefill() -> None:
    plan = paged_attention.plan(call_of(rows=8), H200)
    assert len(plan.launches) == 1 and plan.launches[0].params.every_token == 1
    known = paged_attention.plan(call_of(rows=8, packed=PackedRows(8, 1)), H200)
    assert len(known.launches) == 1 and known.launches[0].params.every_token == 0


@pytest.mark.parametrize("packed", [None, PackedRows(8, 30)])
def test_longer_rows_follow_in_launches_of_their_own(packed: PackedRows | None) -> None:
    plan = paged_attention.plan(call_of(rows=8, tokens=100, packed=packed), H200)
    decode, *prefill = plan.launches
    assert prefill and decode.params.every_token == 0 and decode.params.items == 8
