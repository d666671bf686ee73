"""The interface of every paged engine: pools that the engine owns, and one step over packed rows.

A step has ``rows`` sequences with any number of new tokens each, packed one after another without padding: prefill,
chunks of a prompt and decode mix freely. KV is in blocks of ``block_size`` tokens, recurrent states (conv and
recurrent state of all layers) in slots, one for a sequence. The caller assigns blocks and slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np

from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.chained_steps import Feeding, PreparedNext
from hybridge.runtime.engines.hidden_rows import HiddenRows
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.packed_state import PackedState
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.rollback.modes import AUTO
from hybridge.runtime.engines.step_limits import StepLimits
from hybridge.runtime.engines.step_result import ArrayResult, StepResult
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling


class PagedEngine(ABC):
    """One paged artifact made runnable. Not safe for use from several threads at once."""

    name: ClassVar[str]
    config: RuntimeConfig
    # What a user should know about the choice of this engine, one sentence each.
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def limits(self) -> StepLimits:
        """Limits of one step."""

    @property
    @abstractmethod
    def slot_bytes(self) -> int:
        """Device memory of one slot over all recurrent layers; 0 for a model without."""

    @abstractmethod
    def block_bytes(self, block_size: int) -> int:
        """Device memory of one block of ``block_size`` tokens over all attention layers; 0 for a model without.

        EngineError when the engine cannot run that block size.
        """

    def block_size(self, preferred: int) -> int:
        """Tokens of a block: ``preferred``, unless the engine has blocks of one size only."""
        return preferred

    @property
    def pools_grow(self) -> bool:
        """Whether pools take memory only as they are filled."""
        return False

    @property
    def pool_specs(self) -> tuple[Binding, ...]:
        """Name, type and shape of each pool as ``arrays_from_copy`` gives it."""
        return self.config.bindings.states

    @property
    def pool_limits(self) -> tuple[int, int] | None:
        """The most blocks and the most slots that pools may have; None: as many as there is memory for."""
        return None

    def kv_bytes(self, blocks: Collection[int], block_size: int) -> int:
        """Memory that these blocks take."""
        return len(blocks) * self.block_bytes(block_size)

    def watch_usage(  # noqa: B027 (engines with fixed pools ignore it)
        self, block_in_use: Callable[[int], bool], slot_in_use: Callable[[int], bool]
    ) -> None:
        """Set functions that tell, before each step, which blocks and slots are in use: others need not be kept.

        Without this call, after ``allocate_pools``, all are in use.
        """

    @abstractmethod
    def allocate_pools(self, sizes: PoolSizes) -> None:
        """Make the pools, of unspecified content, in place of those made before. EngineError when memory is short."""

    @abstractmethod
    def step(self, inputs: PackedInputs) -> np.ndarray:
        """Run one step and advance the pools in place; logits [m, vocab] float32 of ``logits_indices``.

        The array may be reused by the next step. After an EngineError the blocks and slots that the step's rows
        write to are undefined; all others are as they were.
        """

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> StepResult:
        """Like ``step``, but may return before a device has finished: reading the result waits.

        samplings: how to choose tokens, by index in ``logits_indices``; other indices get the most likely token. An
        engine may sample in the step; otherwise ``StepResult.sampled`` does it on the host. CHOSEN_LATER: ``choose``
        is called after the launch, if the engine has it.
        """
        return ArrayResult(self.step(inputs))

    @property
    def samples_after_steps(self) -> bool:
        """Whether ``launch`` has no use for ``samplings``: the host samples from its result."""
        return type(self).launch is PagedEngine.launch

    @property
    def samples_in_steps(self) -> bool:
        """Whether ``launch`` samples tokens on a device, also those after draft tokens."""
        return False

    @property
    def chooses_later(self) -> bool:
        """Whether the engine has ``choose``."""
        return False

    def choose(self, result: StepResult, samplings: Mapping[int, TokenSampling]) -> StepResult:
        """Choose the tokens of the last step launched, which was given CHOSEN_LATER and may still run.

        result: that step's, not read so far. Returns the one to read instead.
        """
        raise AssertionError("an engine that chooses no tokens after the launch was asked to")

    @property
    def chains_steps(self) -> bool:
        """Whether the engine has ``launch_next``."""
        return False

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> StepResult | None:
        """Launch a step after that of ``result``, the last one launched, before its tokens are known.

        Rows with a source in ``feeding`` come first and have one token and logits. Each is fed the token that the step
        of ``result`` chooses for it, whatever ``input_ids`` says, unless there is none or it ends the row: then the row
        touches no pool and has no result. ``result.fed_tokens`` says which. From now on the logits of ``result`` cannot
        be read.

        None, and nothing is launched, where the engine cannot do that for these rows. What was enqueued since
        ``result``, such as copies of slots, comes between both steps. After an exception, the tokens of ``result`` can
        still be read.
        """
        raise AssertionError("an engine that does not chain steps was asked to")

    @property
    def prepares_next(self) -> bool:
        """Whether the engine has ``prepare_next``."""
        return False

    def prepare_next(
        self, result: StepResult, samplings: Mapping[int, TokenSampling], inputs: PackedInputs, feeding: Feeding
    ) -> PreparedNext | None:
        """Make ready ``choose`` and, after it, ``launch_next``, while the masks of ``samplings`` are being computed.

        Their arrays are not read here. None where the engine cannot do this for these rows. In that case, after an
        exception, and where what this returns is not used, ``choose`` and ``launch_next`` may be called as if this had
        not been.
        """
        raise AssertionError("an engine that prepares no step after a choice was asked to")

    @property
    def runs_ahead(self) -> bool:
        """Whether ``launch`` returns while a device still works: the host has time for other things then."""
        return False

    def use_state_rings(self, rows: int) -> None:
        """Let decode steps of at least ``rows`` rows write recurrent states once in several tokens; pools are made
        after it.

        Other methods flush the rings of the states that they read. A slot takes more memory then. EngineError where
        the engine cannot.
        """
        raise EngineError(f"the {self.name} engine writes its states in every step: use torch, or no ring_rows")

    @property
    def takes_checkpoints(self) -> bool:
        """Whether a step can store states after other tokens than the last of a row (``PackedInputs.checkpoints``)."""
        return False

    @property
    def max_rollback_tokens(self) -> int:
        """The most tokens of a row that a step may defer; 0 for an engine that defers none."""
        return 0

    @property
    def no_rollback(self) -> str:
        """Why ``max_rollback_tokens`` is 0, where it is, and the remedy."""
        return f"the {self.name} engine cannot roll back draft tokens: use onnxruntime or torch"

    @property
    def rollback_token_bytes(self) -> int:
        """Memory that a token of a deferred row takes."""
        return 0

    @property
    def rollback_modes(self) -> Mapping[str, str]:
        """How each recurrent operator's states are rolled back; as in ``prepare_rollback``."""
        return {}

    def prepare_rollback(  # noqa: B027 (an engine that defers nothing needs no override)
        self, rows: int, tokens: int, mode: str | Mapping[str, str] = AUTO
    ) -> None:
        """Make ready for steps of at most ``rows`` deferred rows of ``tokens`` tokens; pools are made after it.

        mode: "replay" (a step stores what an operator reads of each token, and ``advance`` runs it again), "snapshot"
        (a step stores its state after each token, of which ``advance`` copies one), or by recurrent operator one of
        these; "auto", and operators without one: that which costs less. EngineError for an operator that the graph does
        not have, for a mode that the engine does not have, or when memory is short.
        """

    def advance(self, accepted: np.ndarray) -> None:
        """Advance the states that the last step deferred, each row's by its first ``accepted`` [rows] tokens.

        At most once, before the next step; 0, and in rows that were not deferred, changes nothing. States that do not
        advance stay as they were before that step, as do those of all rows where it failed. After an EngineError the
        slots of the deferred rows are undefined.
        """
        raise EngineError(self.no_rollback)

    @property
    def shows_hidden_states(self) -> bool:
        """Whether ``show_hidden_states`` can."""
        return False

    def show_hidden_states(self, reserved: int) -> HiddenRows:
        """From the next step on, write the last layer's output for every token to the rows that this returns.

        They have ``reserved`` slots for the caller and replace those made before. EngineError when the engine cannot,
        or memory is short.
        """
        raise EngineError(f"the {self.name} engine cannot show hidden states: use torch or onnxruntime")

    @property
    def shows_values(self) -> bool:
        """Whether ``step_values`` shows the graph's inner values."""
        return False

    def step_values(self, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
        """Like ``step``, and also returns the named inner values of the graph (artifact.names), for diagnosis.

        Inner values are [tokens, size] float32; the logits come under "logits". EngineError when the engine cannot
        show inner values or has no value of that name.
        """
        raise EngineError(f"the {self.name} engine cannot show a paged graph's inner values: use onnxruntime-portable")

    def read_pool(self, name: str) -> np.ndarray:
        """A pool by its graph input's name, in the layout of its declaration, for diagnosis; not to be changed.

        EngineError when the engine cannot show its pools, or has none yet.
        """
        raise EngineError(f"the {self.name} engine cannot show its pools: use onnxruntime")

    def fill_pools(self, value: float) -> None:
        """Overwrite all pools with ``value``, for diagnosis; EngineError as in ``read_pool``."""
        raise EngineError(f"the {self.name} engine cannot fill its pools: use onnxruntime")

    @abstractmethod
    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy each source block over its target, in all layers. No target is a source or comes twice."""

    @abstractmethod
    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy each source slot over its target, in all layers. No target is a source or comes twice."""

    @abstractmethod
    def zero_slots(self, slots: Sequence[int]) -> None:
        """Zero the slots: the state before the first token."""

    @abstractmethod
    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> HostCopy:
        """A copy of the blocks and slots in host memory. EngineError when host memory is short."""

    @abstractmethod
    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Write the copy over as many blocks and slots as it has, in the order in which they were swapped out."""

    def packed_slot_bytes(self, kind: str) -> int:
        """Device memory of one packed slot: recurrent states as ``kind``, convolution states as they are.

        EngineError when the engine packs no states.
        """
        raise self._packs_nothing()

    def pack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Write the states of each source slot over its target, a packed slot; no target comes twice.

        Where a device works by itself, this need not wait for it. EngineError when memory is short; the targets are
        undefined then.
        """
        raise self._packs_nothing()

    def unpack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Unpack each source, a packed slot, into its target slot; otherwise as ``pack_slots``."""
        raise self._packs_nothing()

    def packed_out(self, slot: int) -> PackedState:
        """A copy of a packed slot in host memory, as it is. EngineError when host memory is short."""
        raise self._packs_nothing()

    def packed_in(self, state: PackedState, slot: int) -> None:
        """Write ``state`` over a packed slot of the same kind."""
        raise self._packs_nothing()

    def arrays_from_copy(self, copy: HostCopy) -> dict[str, np.ndarray]:
        """Arrays of ``swap_out`` by graph input: KV [parts, blocks, block_size, ...], states [slots, ...], as declared.

        EngineError when the engine cannot show its copies.
        """
        raise EngineError(f"the {self.name} engine cannot save its states: use onnxruntime")

    def copy_from_arrays(self, arrays: Mapping[str, np.ndarray], blocks: int, slots: int) -> HostCopy:
        """The inverse of ``arrays_from_copy``, for ``swap_in``, of arrays of any type; they are rounded to the pools'.

        EngineError as there, or when shapes or magnitudes do not fit.
        """
        raise EngineError(f"the {self.name} engine cannot restore states: use onnxruntime")

    def free_memory(self) -> int | None:
        """Device memory in bytes that pools could still take; None where a byte budget decides instead (a CPU)."""
        return None

    def memory_use(self) -> Mapping[str, int]:
        """Device memory in bytes that the engine uses besides its pools, by purpose; for reports."""
        return {}

    def padded_rows(self, rows: int) -> int:
        """Rows to give a step of ``rows`` rows with one token each, for which the engine has something prepared."""
        return rows

    def padded_blocks(self, blocks: int) -> int:
        """Columns to give the block table of a step whose longest row has ``blocks`` blocks."""
        return blocks

    def close(self) -> None:  # noqa: B027 (an engine without resources needs no override)
        """Release the engine's resources; calling it twice is allowed."""

    def _packs_nothing(self) -> EngineError:
        return EngineError(f"the {self.name} engine keeps no states in 8 bits: use onnxruntime, or exact states")
