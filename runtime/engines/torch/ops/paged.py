"""Keys and values in pages, changed in place: our CUDA kernels on a GPU, else torch."""

from __future__ import annotations

import torch

from runtime.engines.torch.kernels import KernelRunner
from runtime.engines.torch.node_context import NodeContext, Run
from runtime.engines.torch.ops.packed_kernel import PackedKernel
from runtime.engines.torch.step_rows import StepRows
from trt_plugins import torch_ops
from trt_plugins.kernels.call import PackedRows
from trt_plugins.reference.precision import work_dtype
from trt_plugins.spec import OpSpec


def reshape_and_cache(context: NodeContext, spec: OpSpec) -> Run:
    """Writes new keys and values into their places."""
    kernel = PackedKernel(spec, spec.complete_attributes(context.attributes.rest()), context.kernels)
    here = context.is_in_place(0, spec.output_source(spec.outputs[0]))

    def run(key: torch.Tensor, value: torch.Tensor, pool: torch.Tensor, slot_mapping: torch.Tensor) -> torch.Tensor:
        out = pool if here else pool.clone()
        if not kernel.launch([key, value, out, slot_mapping], [out]):
            places = out.flatten(1, 2)
            # What has no place goes to the last block, which belongs to nobody.
            nowhere = places.shape[1] - 1
            index = torch.where(slot_mapping < 0, nowhere, slot_mapping.long())
            places[0].index_copy_(0, index, key)
            places[1].index_copy_(0, index, value)
        return out

    return run


def paged_attention(context: NodeContext, spec: OpSpec) -> Run:
    """Attention of the new tokens over the pages of their rows."""
    attributes = spec.complete_attributes(context.attributes.rest())
    return PagedAttention(spec, attributes, context.kernels)


class PagedAttention:
    """y [tokens, heads, head_dim]; rows of one token that come first are attended together, the others one by one."""

    def __init__(self, spec: OpSpec, attributes: dict, kernels: KernelRunner | None) -> None:
        self._kernel, self._attributes = PackedKernel(spec, attributes, kernels), tuple(attributes.values())
        self._scale, self._window, self._softcap = self._attributes
        torch_ops.register()

    def __call__(
        self,
        query: torch.Tensor,
        pool: torch.Tensor,
        table: torch.Tensor,
        rows: StepRows,
        lengths: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        y = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        own = PackedRows(rows.rows, rows.longest, has_state_indices=False)
        if self._kernel.launch([query, pool, table, rows.bounds, lengths, sinks], [y], own):
            return y
        count = rows.singles
        if count:
            seen = table.shape[1] if rows.lengths is None else -(-max(1, *rows.lengths[:count]) // pool.shape[2])
            y[:count] = self.decoded(query[:count], pool, table[:count, :seen], lengths[:count], sinks)
        reference = torch.ops.trt_edgellm.paged_attention.packed
        for row, begin, end in rows.others():
            bounds = torch.tensor([0, end - begin], dtype=torch.int32, device=query.device)
            own_row = slice(row, row + 1)
            y[begin:end] = reference(
                query[begin:end], pool, table[own_row], bounds, lengths[own_row], sinks, *self._attributes
            )
        return y

    def decoded(
        self,
        query: torch.Tensor,
        pool: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """One token a row: query [rows, heads, head_dim] over table [rows, blocks]; nothing waits for the device."""
        work, (n, heads, size) = work_dtype(query), query.shape
        kv_heads = pool.shape[3]
        found = pool[:, table.long()].flatten(2, 3)  # [2, rows, positions, kv_heads, head_dim]
        position = torch.arange(found.shape[2], device=query.device)
        visible = position < lengths[:, None]
        if self._window:
            visible = visible & (position >= lengths[:, None] - self._window)
        # Whatever lies elsewhere, not a number included, must not reach a sum.
        keys, values = torch.where(visible[:, :, None, None], found.to(work), 0)
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
