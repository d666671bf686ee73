"""The toy engine as a device that works by itself: a step runs when it is waited for or has to come after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.chained_steps import Feeding, PreparedNext
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.step_result import ArrayResult, StepResult
from hybridge.runtime.sampling import CHOSEN_LATER, NO_SAMPLING, DrawError, SampledToken, TokenSampling
from tests.runtime.toy_paged_engine import ToyPagedEngine


class LateResult(StepResult):
    """Of a step that has been launched.

    before: the step whose tokens this one feeds, as ``feeding`` says; None: its own inputs'.
    """

    def __init__(
        self,
        engine: AheadToyEngine,
        inputs: PackedInputs,
        samplings: Mapping[int, TokenSampling],
        before: LateResult | None = None,
        feeding: Feeding | None = None,
    ) -> None:
        self._engine, self._inputs = engine, inputs
        self.chosen = None if samplings is CHOSEN_LATER else samplings
        self.before, self._feeding = before, feeding
        self.overtaken = False
        self._found: ArrayResult | Exception | None = None

    @property
    def is_ready(self) -> bool:
        return self._found is not None

    def run(self) -> None:
        """Run the step, unless it has run."""
        if self._found is not None:
            return
        try:
            inputs = self._inputs
            if self.before is not None and self._feeding is not None:
                inputs = fed(inputs, self.before.fed_tokens(), self._feeding)
            if self._engine.pending is self:
                self._engine.pending = None
            self._found = ArrayResult(self._engine.step(inputs))
        except Exception as error:
            self._found = error
        except BaseException:
            self._found = EngineError("the toy engine was interrupted")
            raise

    def best_tokens(self) -> list[int | None]:
        return self._result().best_tokens()

    def fed_tokens(self) -> list[int]:
        result = self._result()
        tokens = [-1 if token is None else token for token in result.best_tokens()]
        assert self.chosen is not None, "a step feeds tokens that were not chosen"
        for index, found in result.sampled(self.chosen).items():
            tokens[index] = -1 if isinstance(found, Exception) else found[0]
        return tokens

    def logits(self, index: int) -> np.ndarray:
        if self.overtaken:
            raise EngineError("expected finite logits, found others in the toy engine")
        return self._result().logits(index)

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, SampledToken | DrawError]:
        assert not samplings or self.chosen is not None, "tokens are read that were not chosen"
        return self._result().sampled(samplings)

    def _result(self) -> ArrayResult:
        self.run()
        if isinstance(self._found, Exception):
            raise self._found
        assert self._found is not None
        return self._found


def fed(inputs: PackedInputs, tokens: Sequence[int], feeding: Feeding) -> PackedInputs:
    """``inputs`` with each row's token of ``tokens``; rows whose token is -1 or one of their stops are padding."""
    ids, lengths = inputs.input_ids.copy(), inputs.seq_lens.copy()
    slots, states = inputs.slot_mapping.copy(), inputs.state_indices.copy()
    sources = feeding.sources or range(len(feeding.stops))
    for row, (stops, source) in enumerate(zip(feeding.stops, sources, strict=True)):
        if source < 0:
            continue
        assert inputs.query_start_loc[row + 1] == row + 1, "rows that are fed come first and have one token"
        ids[row] = max(0, tokens[source])
        if tokens[source] < 0 or tokens[source] in stops:
            lengths[row], slots[row], states[row] = 0, -1, -1
    return replace(inputs, input_ids=ids, seq_lens=lengths, slot_mapping=slots, state_indices=states)


class AheadToyEngine(ToyPagedEngine):
    """``pending`` is the step that has been launched last but not run; all other calls come after it.

    ``chained`` counts the steps that were launched before the one before them had run, ``chained_mixed`` those of them
    with rows of several tokens, ``joined`` those launched together with the choice of the tokens before them.
    ``refuses``: every so many calls of ``launch_next`` launch nothing.
    """

    pending: LateResult | None = None
    chained = chained_mixed = joined = refuses = asked = 0

    @property
    def runs_ahead(self) -> bool:
        return True

    @property
    def chooses_later(self) -> bool:
        return True

    def choose(self, result: StepResult, samplings: Mapping[int, TokenSampling]) -> StepResult:
        # Work that was enqueued since, such as copies of slots, comes behind the choice too.
        assert isinstance(result, LateResult) and self.pending in (None, result) and result.chosen is None
        result.chosen = samplings
        return result

    @property
    def chains_steps(self) -> bool:
        return True

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> StepResult:
        # A chained step that nothing waits for was given up with the one before it.
        assert self.pending is None or self.pending.before is not None, "a step is launched while another one runs"
        self._catch_up()
        self.pending = LateResult(self, inputs, samplings)
        return self.pending

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> StepResult | None:
        assert isinstance(result, LateResult) and (self.pending is None or self.pending is result)
        assert len(feeding.stops) >= np.count_nonzero(inputs.seq_lens)
        assert len(inputs.input_ids) == len(inputs.positions) == inputs.query_start_loc[-1]
        self.asked += 1
        if self.refuses and self.asked % self.refuses == 0:
            return None
        self.chained += 1
        self.chained_mixed += len(inputs.input_ids) > len(inputs.seq_lens)
        result.overtaken = True
        ids = inputs.input_ids.copy()
        ids[[row for row, source in enumerate(feeding.sources or range(len(feeding.stops))) if source >= 0]] = -1
        self.pending = LateResult(self, replace(inputs, input_ids=ids), feeding.samplings, result, feeding)
        return self.pending

    @property
    def prepares_next(self) -> bool:
        return True

    def prepare_next(
        self, result: StepResult, samplings: Mapping[int, TokenSampling], inputs: PackedInputs, feeding: Feeding
    ) -> PreparedNext | None:
        if self.refuses and (self.asked + 1) % self.refuses == 0:
            return None

        def launch() -> StepResult:
            found = self.launch_next(result, inputs, feeding)
            assert found is not None
            self.joined += 1
            return found

        return PreparedNext(lambda: self.choose(result, samplings), launch)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._catch_up()
        super().copy_blocks(sources, targets)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._catch_up()
        super().copy_slots(sources, targets)

    def zero_slots(self, slots: Sequence[int]) -> None:
        self._catch_up()
        super().zero_slots(slots)

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> HostCopy:
        self._catch_up()
        return super().swap_out(blocks, slots)

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._catch_up()
        super().swap_in(copy, blocks, slots)

    def _catch_up(self) -> None:
        if self.pending is not None:
            self.pending.run()
            self.pending = None
