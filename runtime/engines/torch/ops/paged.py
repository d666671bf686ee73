"""Keys and values in blocks, changed in place: our CUDA kernels on a GPU, else torch."""

from __future__ import annotations

import torch

from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.runtime.engines.torch.node_context import NodeContext, Run
from hybridge.runtime.engines.torch.ops.packed_kernel import PackedKernel
from hybridge.runtime.engines.torch.step_rows import StepRows
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.kernels.call import PackedRows
from hybridge.trt_plugins.reference.e4m3 import e4m3_from
from hybridge.trt_plugins.reference.precision import work_dtype
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.fp8_kv import has_kv_scales


def reshape_and_cache(context: NodeContext, spec: OpSpec) -> Run:
    """Writes new keys and values into their places."""
    kernel = PackedKernel(spec, spec.complete_attributes(context.attributes.rest()), context.kernels)
    here = [context.is_in_place(i, spec.output_source(output)) for i, output in enumerate(spec.outputs)]

    def run(key: torch.Tensor, value: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        *given, slot_mapping = rest
        pools = [pool if own else pool.clone() for pool, own in zip(given, here, strict=True)]
        if not kernel.launch([key, value, *pools, slot_mapping], pools):
            _write(torch.stack((key, value)[: pools[0].shape[0]]), pools, slot_mapping)
        return pools[0] if len(pools) == 1 else tuple(pools)

    return run


def _write(entries: torch.Tensor, pools: list[torch.Tensor], slot_mapping: torch.Tensor) -> None:
    """Keys and values [parts, tokens, kv_heads, head_dim] into a pool, or into one of e4m3 and its scales."""
    size = pools[0].shape[2]
    # Tokens without a slot go to the last block, which no sequence has.
    nowhere = pools[0].shape[1] * size - 1
    slots = torch.where(slot_mapping < 0, nowhere, slot_mapping.long())
    block, offset = slots // size, slots % size
    if len(pools) == 2:
        numbers, scales = e4m3_from(entries)
        entries = numbers.view(torch.uint8)
        pools[1][:, block, :, offset] = scales.transpose(0, 1)
    pools[0][:, block, offset] = entries


def paged_attention(context: NodeContext, spec: OpSpec) -> Run:
    """Attention of the new tokens over the blocks of their rows."""
    attributes = spec.complete_attributes(context.attributes.rest())
    return PagedAttention(spec, attributes, context.kernels)


class PagedAttention:
    """y [tokens, heads, head_dim]; rows of one token that come first are attended together, the others one by one."""

    def __init__(self, spec: OpSpec, attributes: dict, kernels: KernelRunner | None) -> None:
        self._kernel, self._attributes = PackedKernel(spec, attributes, kernels), tuple(attributes.values())
        self._scale, self._window, self._softcap = self._attributes
        self._pools = 2 if has_kv_scales(spec) else 1
        torch_ops.register()
        self._reference = getattr(torch.ops.trt_edgellm, spec.name).packed

    def __call__(self, query: torch.Tensor, *inputs: torch.Tensor | StepRows | None) -> torch.Tensor:
        """inputs: the pool, with scales where it is of e4m3, block table, rows, lengths, and the sinks if there are."""
        pools, (table, rows, lengths, *last) = list(inputs[: self._pools]), inputs[self._pools :]
        sinks = last[0] if last else None
        return self._attended(query, pools, table, rows, lengths, sinks)  # type: ignore[arg-type]

    def _attended(
        self,
        query: torch.Tensor,
        pools: list[torch.Tensor],
        table: torch.Tensor,
        rows: StepRows,
        lengths: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        y = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        own = PackedRows(rows.rows, rows.longest, has_state_indices=False)
        if self._kernel.launch([query, *pools, table, rows.bounds, lengths, sinks], [y], own):
            return y
        count = rows.singles
        if count:
            seen = table.shape[1] if rows.lengths is None else -(-max(1, *rows.lengths[:count]) // pools[0].shape[2])
            y[:count] = self.decoded(query[:count], pools, table[:count, :seen], lengths[:count], sinks)
        for row, begin, end in rows.others():
            bounds = torch.tensor([0, end - begin], dtype=torch.int32, device=query.device)
            own_row = slice(row, row + 1)
            y[begin:end] = self._reference(
                query[begin:end], *pools, table[own_row], bounds, lengths[own_row], sinks, *self._attributes
            )
        return y

    def decoded(
        self,
        query: torch.Tensor,
        pools: list[torch.Tensor],
        table: torch.Tensor,
        lengths: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """One token per row: query [rows, heads, head_dim] over table [rows, blocks]; nothing waits for the device."""
        work, (n, heads, size) = work_dtype(query), query.shape
        kv_heads = pools[0].shape[3]
        found = pools[0][:, table.long()].flatten(2, 3)  # [parts, rows, positions, kv_heads, head_dim]
        if len(pools) == 2:
            scales = pools[1][:, table.long()].transpose(3, 4).flatten(2, 3)
            found = found.view(torch.float8_e4m3fn).to(work) * scales.to(work).unsqueeze(-1)
        position = torch.arange(found.shape[2], device=query.device)
        visible = position < lengths[:, None]
        if self._window:
            visible = visible & (position >= lengths[:, None] - self._window)
        # Other values, which may be NaN, must not reach a sum.
        parts = torch.where(visible[:, :, None, None], found.to(work), 0)
        keys, values = parts[0], parts[-1]
        q = query.to(work).view(n, kv_heads, heads // kv_heads, size) * (self._scale or size**-0.5)
        scores = torch.einsum("nkgd,nskd->nkgs", q, keys)
        if self._softcap:
            scores = self._softcap * torch.tanh(scores / self._softcap)
        scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
        if sinks is not None:
            column = sinks.to(work).view(1, kv_heads, -1, 1).expand(n, -1, -1, 1)
            scores = torch.cat((scores, column), -1)
        weights = scores.softmax(-1)[..., : found.shape[2]]
        return torch.einsum("nkgs,nskd->nkgd", weights, values).reshape(query.shape).to(query.dtype)
