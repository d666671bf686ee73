"""The network of steps with draft tokens, and how the states of their rows advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hybridge.artifact.bindings import Binding
from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import NUM_ACCEPTED_TOKENS, QUERY_START_LOC, STATE_INDICES
from hybridge.runtime.engines.artifact_graph import read_model
from hybridge.runtime.engines.rollback.modes import AUTO, REPLAY, SNAPSHOT, OperatorCost, chosen_modes
from hybridge.runtime.engines.rollback.rollback import DeferredRows
from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter
from hybridge.runtime.engines.tensorrt_network.parsed import parse_artifact
from hybridge.runtime.engines.tensorrt_network.states import run_in_place
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.trt_plugins.rewrites.draft_slots import recurrent_pools


@dataclass(frozen=True)
class DraftNetwork:
    """``network``: steps whose deferred rows have up to ``tokens`` tokens. modes: ``mode`` for each recurrent operator.

    advance: the network that advances states, for replay; stored: the outputs of a step that it reads.
    """

    tokens: int
    mode: str
    modes: Mapping[str, str]
    network: NetworkInterpreter
    stored: tuple[str, ...]
    advance: NetworkInterpreter | None

    @classmethod
    def parsed(
        cls, folder: Path, tokens: int, mode: str | Mapping[str, str], uses_plugins: bool, widen: bool
    ) -> DraftNetwork:
        """Parse the artifact ``folder`` for rows of ``tokens``; "auto" is replay with plugins, else snapshots.

        EngineError if operators have different modes, or for replay without plugins.
        """
        operators = sorted(set(recurrent_pools(read_model(folder).graph).values()))
        requested = (REPLAY if uses_plugins else SNAPSHOT) if mode == AUTO else mode
        modes = chosen_modes(dict.fromkeys(operators, OperatorCost(1, 1 if uses_plugins else None)), requested)
        if len(set(modes.values())) != 1:
            raise EngineError(f"expected one mode for all recurrent operators of an engine, found {modes}: choose one")
        (chosen,) = set(modes.values())
        options: dict[str, Any] = {"speculative_tokens": tokens - 1, "draft_states": chosen}
        found = parse_artifact(folder, widen, plugins="on" if uses_plugins else "off", **options)
        return cls(tokens, chosen, modes, found.network, tuple(b.name for b in found.stored), found.advance)

    def snapshot_slots(self, specs: Sequence[Binding], rows: int) -> dict[str, int]:
        """By state pool, the number of slots for the states after the draft tokens of ``rows`` rows."""
        return {} if self.mode == REPLAY else {spec.name: rows * self.tokens for spec in specs if not spec.grows}


@dataclass(frozen=True)
class ReplayedRows:
    """A ``RollbackMemory`` that runs the second network on what a step ``stored`` for the accepted tokens.

    columns: slots per row; the last accepted token's slot has the row's state. starts [n]: position in the step of
    each deferred row's first token.
    """

    network: NetworkInterpreter
    specs: Sequence[Binding]
    pools: TorchPools
    stored: Mapping[str, Tensor]
    columns: int
    deferred: DeferredRows
    starts: np.ndarray

    def advance(self, accepted: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        rows = zip(self.starts.tolist(), accepted, self.deferred.slots.tolist(), strict=True)
        chosen = [(start, count, slot) for start, count, slot in rows if count]
        counts = np.array([count for _, count, _ in chosen])
        table = np.full((len(chosen), self.columns), -1, np.int32)
        table[np.arange(len(chosen)), counts - 1] = [slot for _, _, slot in chosen]
        tokens = np.concatenate([np.arange(start, start + count) for start, count, _ in chosen])
        feeds = {
            QUERY_START_LOC: np.array([0, *np.cumsum(counts)], np.int32),
            STATE_INDICES: table,
            NUM_ACCEPTED_TOKENS: counts.astype(np.int32),
        }
        memory = {**self.pools.tensors, **{name: value[tokens] for name, value in self.stored.items()}}
        run_in_place(self.network, [spec for spec in self.specs if not spec.grows], feeds, memory)
