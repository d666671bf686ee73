"""Cases of ``sampling``: tokens of 64 rows of 151,936 logits, greedy and with temperature and filters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.packages import flashinfer
from benchmarks.kernels.peers import Peer, package_peers
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.tensor_call import TensorCall, normal
from hybridge.runtime.engines.device_sampling import result_bytes, table_bytes
from hybridge.runtime.engines.packed_sampling import PackedSampling
from hybridge.runtime.sampling import Sampler, SamplingParams
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused.sampling import SamplingProblem, edit_type, plan, result_type, settings_type

ROWS, VOCAB, TEMPERATURE = 64, 151936, 0.8
BYTES = 4 * ROWS * VOCAB
# Name, standard deviation of the logits, filters. In wide rows, top_p keeps about half of the tokens.
FILTERS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("top_k 50, top_p 0.9", 4.0, {"top_k": 50, "top_p": 0.9}),
    ("top_p 0.9, narrow rows", 4.0, {"top_p": 0.9}),
    ("top_p 0.9, wide rows", 1.0, {"top_p": 0.9}),
)


def cases() -> Iterator[KernelCase]:
    """The error is the share of rows that do not get exactly the host's token."""
    greedy = SamplingParams(temperature=0)
    yield KernelCase("greedy", BYTES, 0.0, partial(_prepared, greedy, 4.0), peers=_greedy_peer)
    for name, width, filters in FILTERS:
        params = SamplingParams(temperature=TEMPERATURE, seed=1, **filters)
        peers = partial(_sampled_peers, width, **filters)
        yield KernelCase(name, BYTES, 0.0, partial(_prepared, params, width), at_least=1.0, peers=peers)


def _prepared(params: SamplingParams, width: float) -> Prepared:
    problem = SamplingProblem(ROWS, VOCAB)
    device, logits = KernelDevice.current(), _logits(width)
    tables = [np.zeros(nbytes, np.uint8) for nbytes in table_bytes(ROWS, VOCAB, lists=False)]
    settings, edits, masks = (
        table.view(kind) for table, kind in zip(tables, (settings_type(), edit_type(), np.uint32), strict=True)
    )
    samplings = {row: Sampler(params, choice=row).draw(VOCAB) for row in range(ROWS)}
    PackedSampling(settings, edits, masks.reshape(ROWS, -1), VOCAB, lists=False).fill(samplings)
    there = [torch.from_numpy(table).cuda() for table in tables]
    found = [
        torch.full((nbytes,), 0xFF, dtype=torch.uint8, device="cuda") for nbytes in result_bytes(ROWS, VOCAB, False)
    ]
    run = TensorCall(device, plan(problem, device.traits), [logits, *there], found)

    def error() -> float:
        run()
        tokens = found[0].cpu().numpy().view(result_type())["token"]
        rows = enumerate(logits.cpu().numpy())
        wrong = sum(int(tokens[index]) != samplings[index].chosen(row, row)[0] for index, row in rows)
        return wrong / ROWS

    return Prepared(run, error)


def _greedy_peer() -> Mapping[str, Peer]:
    return {"torch argmax": Peer(_argmax, tolerance=0.0)}


def _argmax() -> Prepared:
    logits = _logits(4.0)
    run = partial(torch.argmax, logits, dim=-1)
    return Prepared(run, lambda: float((logits.gather(-1, run()[:, None])[:, 0] != logits.amax(-1)).double().mean()))


def _sampled_peers(width: float, top_p: float, top_k: int = 0) -> Mapping[str, Peer]:
    """flashinfer's kernels in their orders of the filters."""
    orders = ("top_k_first", "joint") if top_k else ("",)
    prepares = {order: partial(_sampled_peer, width, top_p, top_k, order) for order in orders}
    found = package_peers(flashinfer.DISTRIBUTION, prepares, flashinfer.NAME)
    return {name: replace(peer, tolerance=0.0) for name, peer in found.items()}


def _sampled_peer(width: float, top_p: float, top_k: int, order: str) -> Prepared:
    logits = _logits(width)
    run = flashinfer.sampled(logits, TEMPERATURE, top_p, top_k, order)

    def error() -> float:
        """The share of rows with a token that the filters leave out; a hair more than top_p is let pass."""
        probabilities = (logits.double() / TEMPERATURE).softmax(-1)
        descending, tokens = probabilities.sort(dim=-1, descending=True)
        rank = (tokens == run()[:, None]).int().argmax(-1, keepdim=True)
        before = (descending.cumsum(-1) - descending).gather(-1, rank)[:, 0]
        # Of the probabilities that top_k leaves, where it comes first.
        total = descending[:, :top_k].sum(-1) if order == "top_k_first" else 1.0
        return float(((before > (top_p + 1e-4) * total) | (rank[:, 0] >= (top_k or VOCAB))).double().mean())

    return Prepared(run, error)


def _logits(width: float) -> torch.Tensor:
    return width * normal(ROWS, VOCAB)
