"""Scan weights while the graph is traced: the scan waits for memory, the tracer for the interpreter."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.scale_check import check_scales
from hybridge.exporter.checkpoint.quantized.tensor import QuantizedTensor
from hybridge.exporter.checkpoint.scan import ScanReport, scan_weights


@contextlib.contextmanager
def background_scan(
    targets: list[tuple[TensorSlot, DType]] | None, weights: Iterable[QuantizedTensor] = ()
) -> Iterator[Callable[[], ScanReport | None]]:
    """Start scanning ``targets`` and the scales of quantised ``weights``.

    The yielded function waits for the result, or raises what the scan found.

    Leaving the block stops a scan that was not waited for. Without targets the function returns None at once.
    """
    if targets is None:
        yield lambda: None
        return
    cancelled = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(_scan, targets, weights, cancelled)
        try:
            yield future.result
        finally:
            cancelled.set()


def _scan(
    targets: list[tuple[TensorSlot, DType]], weights: Iterable[QuantizedTensor], cancelled: threading.Event
) -> ScanReport:
    check_scales(weights, cancelled)
    return scan_weights(targets, None, cancelled)
