"""Rollback modes of an operator's states, and which one costs less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridge.artifact.errors import EngineError

AUTO, REPLAY, SNAPSHOT = "auto", "replay", "snapshot"


@dataclass(frozen=True)
class OperatorCost:
    """Bytes of one state of an operator, and of what a replay stores of one token; None: it cannot be replayed."""

    state_bytes: int
    token_bytes: int | None

    @property
    def cheaper_mode(self) -> str:
        """The mode that moves fewer bytes.

        Both read a state, and a replaced one is read and written again: by the copy of a snapshot, or by the
        replay. Also, a snapshot writes a state for each token; a replay writes each token's inputs and reads them
        twice.
        """
        return SNAPSHOT if self.token_bytes is None or self.state_bytes < 3 * self.token_bytes else REPLAY


def chosen_modes(costs: Mapping[str, OperatorCost], requested: str | Mapping[str, str]) -> dict[str, str]:
    """The mode of each operator of ``costs``: as ``requested`` of all or by name, else the cheaper one.

    EngineError for an operator that there is none of, and for a replay of one that has none.
    """
    if isinstance(requested, str):
        requested = {} if requested == AUTO else dict.fromkeys(costs, requested)
    for name, mode in requested.items():
        if name not in costs:
            raise EngineError(
                f"expected modes of the recurrent operators {', '.join(sorted(costs))}, found {name!r}: name one of "
                "these"
            )
        if mode == REPLAY and costs[name].token_bytes is None:
            raise EngineError(
                f"expected a mode other than {REPLAY!r} for {name}, which this engine cannot replay for that "
                f"many draft tokens: use {SNAPSHOT!r}, or fewer draft tokens"
            )
    return {name: requested.get(name, cost.cheaper_mode) for name, cost in costs.items()}
