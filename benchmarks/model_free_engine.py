"""An engine without a model: scheduler, pools and prefix cache run as they are, and nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.artifact.bindings import Binding, GraphBindings
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.artifact.layer_types import ATTENTION, MAMBA
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.step_limits import StepLimits


class ModelFreeEngine(PagedEngine):
    """Memory of a hybrid model that is never allocated, a byte a token or slot; subclasses say what a step returns."""

    def __init__(self, config: RuntimeConfig, max_tokens: int) -> None:
        self.config = config
        self._limits = StepLimits(max_tokens, config.max_batch_size)

    @property
    def limits(self) -> StepLimits:
        return self._limits

    @property
    def slot_bytes(self) -> int:
        return 1

    def block_bytes(self, block_size: int) -> int:
        return block_size

    def allocate_pools(self, sizes: PoolSizes) -> None:
        """There are none."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """There are none."""

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """There are none."""

    def zero_slots(self, slots: Sequence[int]) -> None:
        """There are none."""

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> HostCopy:
        raise MemoryError("this engine has no memory to swap")

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        raise MemoryError("this engine has no memory to swap")


def hybrid_config(
    name: str,
    vocab: int,
    rows: int,
    longest: int,
    attention: tuple[int, KVLayerConfig],
    recurrent: tuple[int, RecurrentLayerConfig],
) -> RuntimeConfig:
    """A paged model in bfloat16 with float32 states. attention, recurrent: the number of layers and their sizes."""
    (kv_count, kv_layer), (state_count, state_layer) = attention, recurrent
    tokens = Binding("input_ids", DType.INT64, ("tokens",))
    logits = Binding("logits", DType.FLOAT32, ("num_logits", vocab))
    return RuntimeConfig(
        model_type=name,
        layout="paged",
        dtype=DType.BFLOAT16,
        vocab_size=vocab,
        hidden_size=4096,
        max_batch_size=rows,
        max_seq_len=longest,
        layer_types=(MAMBA,) * state_count + (ATTENTION,) * kv_count,
        kv_layers=(kv_layer,) * kv_count,
        kv_cache_dtype=DType.BFLOAT16,
        recurrent_layers=(state_layer,) * state_count,
        recurrent_state_dtype=DType.FLOAT32,
        conv_state_dtype=DType.BFLOAT16,
        eos_token_ids=(),
        bindings=GraphBindings((tokens,), (logits,)),
    )
