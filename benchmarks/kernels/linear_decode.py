"""Cases of ``linear_decode``: the weights of a 2.65 B hybrid model in bfloat16, beside torch in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from benchmarks.kernels.case import COPY_GBPS, KernelCase, Prepared
from benchmarks.kernels.rotation import input_sets
from benchmarks.kernels.tensor_call import TensorCall
from benchmarks.kernels.timing import graph_time
from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused.linear_decode import LinearDecode, plan

TOLERANCE = 3e-3
PEER = "torch F.linear (same run)"
# Share of read bandwidth (4,533 GB/s on the card of COPY_GBPS) that products of the larger weights are to reach.
READ_SHARE = 0.92 * 4533.0 / COPY_GBPS
LARGE_BYTES = 60_000_000
_HIDDEN = 4096
# Name, outputs, inputs, how often in the model.
SHAPES = (
    ("in_proj", 18560, _HIDDEN, 6),
    ("out_proj", _HIDDEN, 8192, 6),
    ("up", 21504, _HIDDEN, 5),
    ("down", _HIDDEN, 21504, 5),
    ("qkv", 6144, _HIDDEN, 1),
    ("o", _HIDDEN, _HIDDEN, 1),
    ("lm_head", 131072, _HIDDEN, 1),
)


def cases() -> Iterator[KernelCase]:
    """Each shape, and all products of one decode step one after the other, for 1 and 8 rows."""
    for rows in (1, 8):
        for name, outputs, inputs, _ in SHAPES:
            yield _case(f"{name} {inputs}x{outputs} m{rows}", rows, ((outputs, inputs, 1),))
        yield _case(f"all of a step m{rows}", rows, tuple(shape[1:] for shape in SHAPES))


def _case(name: str, rows: int, shapes: tuple[tuple[int, int, int], ...]) -> KernelCase:
    size = sum(2 * count * (outputs * inputs + rows * (outputs + inputs)) for outputs, inputs, count in shapes)
    share = READ_SHARE if size >= LARGE_BYTES else None
    return KernelCase(
        name,
        size,
        TOLERANCE,
        lambda: _prepared(rows, shapes),
        at_least=1.0,
        bandwidth_share=share,
        timed_peers=lambda: {PEER: _peer_time(rows, shapes, size)},
    )


def _weights(shapes: tuple[tuple[int, int, int], ...]) -> list[torch.Tensor]:
    return [
        torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * inputs**-0.5
        for outputs, inputs, count in shapes
        for _ in range(count)
    ]


def _inputs(rows: int, weight: torch.Tensor) -> torch.Tensor:
    return torch.randn(rows, weight.shape[1], device="cuda", dtype=torch.bfloat16)


def _peer_time(rows: int, shapes: tuple[tuple[int, int, int], ...], size: int) -> float:
    """Microseconds of torch's products."""

    def calls() -> Callable[[], object]:
        pairs = [(_inputs(rows, weight), weight) for weight in _weights(shapes)]
        return lambda: [F.linear(x, weight) for x, weight in pairs]

    return graph_time([calls() for _ in range(input_sets(size))]).median


def _prepared(rows: int, shapes: tuple[tuple[int, int, int], ...]) -> Prepared:
    products = [_Product(_inputs(rows, weight), weight) for weight in _weights(shapes)]

    def run() -> None:
        for product in products:
            product.run()

    return Prepared(run, lambda: max(product.error() for product in products))


class _Product:
    """One product with its tensors."""

    def __init__(self, x: torch.Tensor, weight: torch.Tensor) -> None:
        self.x, self.weight = x, weight
        self.y = torch.full((x.shape[0], weight.shape[0]), float("nan"), device="cuda", dtype=torch.bfloat16)
        device = KernelDevice.current()
        problem = LinearDecode(x.shape[0], x.shape[1], weight.shape[0], DType.BFLOAT16, DType.BFLOAT16)
        self.run = TensorCall(device, plan(problem, device.traits), [x, weight, None, None, None, None], [self.y])

    def error(self) -> float:
        expected = self.x.double() @ self.weight.double().T
        return float((self.y.double() - expected).norm() / expected.norm())
