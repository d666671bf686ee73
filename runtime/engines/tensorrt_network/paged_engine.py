"""Runs a paged artifact by computing the network that TensorRT's parser makes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor

from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import (
    BLOCK_TABLE,
    INPUT_IDS,
    LOGITS,
    NUM_ACCEPTED_TOKENS,
    QUERY_START_LOC,
    SEQ_LENS,
    STATE_INDICES,
)
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.runtime.engines.packed_check import check_packed
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.pooled import PackingEngine
from hybridge.runtime.engines.rollback.draft_inputs import DraftInputs, draft_inputs
from hybridge.runtime.engines.rollback.modes import AUTO, SNAPSHOT
from hybridge.runtime.engines.rollback.rollback import Rollback, SnapshotRows, SnapshotSlots
from hybridge.runtime.engines.tensorrt_network.draft_network import DraftNetwork, ReplayedRows
from hybridge.runtime.engines.tensorrt_network.parsed import parse_artifact
from hybridge.runtime.engines.tensorrt_network.profile_shapes import check_within
from hybridge.runtime.engines.tensorrt_network.states import check_values, computed_specs, run_in_place
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.trt_plugins.build.options import MOST_SPECULATIVE_TOKENS
from hybridge.trt_plugins.build.profiles import PAGED_BLOCK_SIZE, PREFILL

# Their sizes have to be within a profile. An engine's runtime computes more logits in several parts.
_ROW_INPUTS = (INPUT_IDS, QUERY_START_LOC, SEQ_LENS, BLOCK_TABLE, STATE_INDICES)


class NetworkPagedEngine(PackingEngine[TorchPools]):
    """Computes a paged artifact's network on the CPU, in its declared types, and updates the pools in place.

    Steps with draft tokens run the network of an engine built for that many, with rollback by replay if it has plugins,
    else by snapshots.
    """

    name: ClassVar[str] = "tensorrt-network"
    _plugins: ClassVar[str] = "auto"
    _model_file: ClassVar[str] = MODEL_FILE

    def __init__(self, folder: str | Path, widen: bool = False) -> None:
        """Parse the artifact in ``folder``; arguments and errors are those of ``NetworkEngine``."""
        super().__init__(folder)
        self._widen, self._device = widen, TorchDevice("cpu")
        self._specs = computed_specs(self.config.bindings.states, widen)
        parsed = parse_artifact(self._folder, widen, self._config_file, self._model_file, plugins=self._plugins)
        self._network, self._uses_plugins, self.notes = parsed.network, parsed.uses_plugins, parsed.notes
        self._profiles = parsed.plan.profiles
        prefill = next(profile.shapes for profile in parsed.plan.profiles if profile.name == PREFILL)
        self._step_tokens = prefill[INPUT_IDS][-1][0]
        self._drafts: DraftNetwork | None = None
        self._rollback = Rollback()

    def block_size(self, preferred: int) -> int:
        return PAGED_BLOCK_SIZE

    def block_bytes(self, block_size: int) -> int:
        if block_size != PAGED_BLOCK_SIZE:
            raise EngineError(
                f"expected blocks of {PAGED_BLOCK_SIZE} tokens, which the network has, found {block_size}: choose these"
            )
        return super().block_bytes(block_size)

    def allocate_pools(self, sizes: PoolSizes) -> None:
        self.block_bytes(sizes.block_size)
        self._rollback.forget()
        self._pools = None
        snapshots = {} if self._drafts is None else self._drafts.snapshot_slots(self._specs, self.limits.max_rows)
        self._pools = TorchPools(self._specs, sizes, self._device, snapshots)

    @property
    def shows_values(self) -> bool:
        return True

    @property
    def max_rollback_tokens(self) -> int:
        return MOST_SPECULATIVE_TOKENS if self.config.recurrent_layers else 0

    @property
    def rollback_token_bytes(self) -> int:
        return self.slot_bytes

    @property
    def rollback_modes(self) -> Mapping[str, str]:
        return {} if self._drafts is None else self._drafts.modes

    def prepare_rollback(self, rows: int, tokens: int, mode: str | Mapping[str, str] = AUTO) -> None:
        self._drafts = DraftNetwork.parsed(self._folder, tokens, mode, self._uses_plugins, self._widen)
        self._pools = None

    def advance(self, accepted: np.ndarray) -> None:
        self._rollback.advance(accepted.tolist())

    def step(self, inputs: PackedInputs) -> np.ndarray:
        return self.step_values(inputs, ())[LOGITS]

    def step_values(self, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
        drafts = self._drafts
        check_packed(inputs, self.limits, self.config, self.pools.sizes, 0 if drafts is None else drafts.tokens)
        check_values(self._network, values)
        self._rollback.forget()
        if drafts is None or inputs.deferred is None or not inputs.deferred.any():
            feeds = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
            check_within(self._profiles, {n: v.shape for n, v in feeds.items() if n in _ROW_INPUTS})
            found = run_in_place(self._network, self._specs, feeds, self.pools.tensors, values)
        else:
            found = self._run_drafts(drafts, inputs, values)
        return {name: found[name].float().numpy() for name in (LOGITS, *values)}

    def read_pool(self, name: str) -> np.ndarray:
        return self.pools.read(name)

    def fill_pools(self, value: float) -> None:
        self.pools.fill(value)

    def _run_drafts(self, drafts: DraftNetwork, inputs: PackedInputs, values: Sequence[str]) -> dict[str, Tensor]:
        pools, tokens = self.pools, drafts.tokens
        step, rows = draft_inputs(inputs, tokens, SnapshotSlots(pools.sizes.num_slots, tokens))
        feeds = _draft_feeds(step, drafts.mode)
        found = run_in_place(drafts.network, self._specs, feeds, pools.tensors, values)
        if drafts.advance is None:
            self._rollback.defer(rows.deferred, SnapshotRows(pools))
        else:
            stored = {name: found[name].clone() for name in drafts.stored}
            deferred = rows.deferred
            starts = inputs.query_start_loc[deferred.rows]
            own = ReplayedRows(drafts.advance, self._specs, pools, stored, tokens + 1, deferred, starts)
            self._rollback.defer(deferred, own)
        return found


class NativeNetworkPagedEngine(NetworkPagedEngine):
    """The same network without plugins: every operator consists of TensorRT layers."""

    name: ClassVar[str] = "tensorrt-network-native"
    _plugins: ClassVar[str] = "off"


def _draft_feeds(step: DraftInputs, mode: str) -> dict[str, np.ndarray]:
    feeds = {field.name: getattr(step, field.name) for field in fields(step)}
    feeds[STATE_INDICES] = step.snapshot_slots if mode == SNAPSHOT else step.state_indices
    feeds[NUM_ACCEPTED_TOKENS] = step.num_accepted_tokens
    return feeds
