"""Cases of ``sampling``: tokens of 64 rows of 151,936 logits, greedy and with temperature and filters."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.case import KernelCase, Prepared
from benchmarks.kernels.tensor_call import TensorCall, normal
from benchmarks.kernels.timing import Calls, input_sets
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
PEER = "flashinfer"


def cases() -> Iterator[KernelCase]:
    """The error is the share of rows that do not get exactly the host's token."""
    greedy = SamplingParams(temperature=0)
    yield KernelCase("greedy", BYTES, 0.0, partial(_prepared, greedy, 4.0), timed_peers=_greedy_peer)
    for name, width, filters in FILTERS:
        params = SamplingParams(temperature=TEMPERATURE, seed=1, **filters)
        peers = partial(_sampled_peers, width, **filters)
        yield KernelCase(name, BYTES, 0.0, partial(_prepared, params, width), at_least=1.0, timed_peers=peers)


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


def _greedy_peer() -> Mapping[str, Calls]:
    return {"torch argmax (same run)": _peer_calls(4.0, lambda logits: torch.argmax(logits, dim=-1))}


def _sampled_peers(width: float, top_p: float, top_k: int = 0) -> Mapping[str, Calls]:
    """flashinfer's kernels in their orders of the filters, where it can be imported; else no peer.

    They take probabilities, whose computation by its softmax is part of the time. Seed and offset are fixed: as
    numbers on the host they cost nothing.
    """
    if importlib.util.find_spec(PEER) is None:
        return {}
    from flashinfer import sampling

    name, fixed = f"{PEER} {importlib.metadata.version('flashinfer-python')}", {"seed": 1, "offset": 0}

    def probabilities(logits: torch.Tensor) -> torch.Tensor:
        return sampling.softmax(logits, temperature=TEMPERATURE)

    def with_both(logits: torch.Tensor, order: str) -> object:
        return sampling.top_k_top_p_sampling_from_probs(
            probabilities(logits), top_k, top_p, filter_apply_order=order, **fixed
        )

    if not top_k:
        calls = {"": lambda logits: sampling.top_p_sampling_from_probs(probabilities(logits), top_p, **fixed)}
    else:
        calls = {f", {order}": partial(with_both, order=order) for order in ("top_k_first", "joint")}
    return {f"{name}{order} (same run)": _peer_calls(width, call) for order, call in calls.items()}


def _peer_calls(width: float, call: Callable[[torch.Tensor], object]) -> Calls:
    sets = [_logits(width) for _ in range(input_sets(BYTES))]
    return [partial(call, logits) for logits in sets]


def _logits(width: float) -> torch.Tensor:
    return width * normal(ROWS, VOCAB)
