"""A step that is launched before the tokens of the one before it are known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import TokenSampling


@dataclass(frozen=True)
class Feeding:
    """How rows get the tokens of the step before.

    stops: by row, the tokens that end it, and are not fed. samplings: as in ``PagedEngine.launch``. sources: by row,
    the index of its token in logits_indices of the step before, -1: its tokens are in ``input_ids``; None: in order.
    """

    stops: Sequence[Collection[int]]
    samplings: Mapping[int, TokenSampling]
    sources: Sequence[int] | None = None


@dataclass(frozen=True)
class PreparedNext:
    """The choice of a step's tokens and the launch of the step after it, made ready, with nothing enqueued yet.

    choose: as ``PagedEngine.choose``; first, once the masks are known. launch: as ``PagedEngine.launch_next``, after
    whose exceptions, too, the chosen tokens can be read. Each is called once at most.
    """

    choose: Callable[[], StepResult]
    launch: Callable[[], StepResult]
