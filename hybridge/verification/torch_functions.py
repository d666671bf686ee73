"""What transformers calls where causal_conv1d, mamba_ssm or fla is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def torch_functions() -> Iterator[None]:
    """Let transformers compute with its own functions of torch, as it does in an export.

    transformers 5.23 calls the packages' kernels even for tensors on the CPU, which they refuse.
    """
    from transformers.integrations import hub_kernels

    name = "is_torchdynamo_exporting"
    before = getattr(hub_kernels, name, None)
    if before is None:
        yield
        return
    setattr(hub_kernels, name, lambda: True)
    try:
        yield
    finally:
        setattr(hub_kernels, name, before)
