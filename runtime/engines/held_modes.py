"""What becomes of an operator's states in steps that hold them, and which way costs less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridge.artifact.errors import EngineError

AUTO, REPLAY, SNAPSHOT = "auto", "replay", "snapshot"


@dataclass(frozen=True)
class OperatorCost:
    """Bytes of one state of an operator, and of what one token leaves behind that advances it."""

    state_bytes: int
    token_bytes: int

    @property
    def cheaper_mode(self) -> str:
        """The mode that moves fewer bytes.

        Both read a state, and a replaced one is read and written once more: by the copy of a snapshot, or by the
        advance. Beside that a snapshot writes a state for each token; a replay reads and writes what the token leaves
        behind, and reads it again.
        """
        return SNAPSHOT if self.state_bytes < 3 * self.token_bytes else REPLAY


def chosen_modes(costs: Mapping[str, OperatorCost], asked: str | Mapping[str, str]) -> dict[str, str]:
    """The mode of each operator of ``costs``: as ``asked`` of all or by name, else the cheaper one.

    EngineError for an operator that there is none of.
    """
    if isinstance(asked, str):
        asked = {} if asked == AUTO else dict.fromkeys(costs, asked)
    for name in asked:
        if name not in costs:
            raise EngineError(
                f"expected modes of the recurrent operators {', '.join(sorted(costs))}, found {name!r}: name one of "
                "these"
            )
    return {name: asked.get(name, cost.cheaper_mode) for name, cost in costs.items()}
