"""Names of graph inputs, outputs and of the inner values that verify looks at. Exporter and runtime share them."""

from __future__ import annotations

INPUT_IDS, CONTEXT_LENGTHS, PAST_LENGTHS, LOGITS = "input_ids", "context_lengths", "past_lengths", "logits"
# A step of the paged layout.
POSITIONS, QUERY_START_LOC, SEQ_LENS = "positions", "query_start_loc", "seq_lens"
BLOCK_TABLE, SLOT_MAPPING, STATE_INDICES = "block_table", "slot_mapping", "state_indices"
LOGITS_INDICES = "logits_indices"
# An input of steps with draft tokens.
NUM_ACCEPTED_TOKENS = "num_accepted_tokens"
# Output of a graph without a head: the final norm's output for every token.
HIDDEN_STATES = "hidden_states"
# An input of multi-token prediction heads: which of the given hidden states are the head's own.
IS_OWN = "is_own"
# Of an engine of such a head: rows of hidden states on the device, the row of each token, and the head's own states.
HIDDEN_ROWS, HIDDEN_SLOTS, OWN_HIDDEN_STATES = "hidden_rows", "hidden_slots", "own_hidden_states"
EMBEDDINGS_OUTPUT, FINAL_NORM_OUTPUT = "embeddings.output", "final_norm.output"


def layer_output(index: int) -> str:
    """The hidden states [batch, seq, hidden] after decoder layer ``index`` (absolute)."""
    return f"layers.{index}.output"


def past_key(k: int) -> str:
    """Key cache input of attention layer ``k`` (local index)."""
    return f"past_key_{k}"


def past_value(k: int) -> str:
    """Value cache input of attention layer ``k`` (local index)."""
    return f"past_value_{k}"


def kv_pool(k: int) -> str:
    """Pool of keys and values of attention layer ``k`` (local index), in the paged layout."""
    return f"kv_pool_{k}"


def kv_scales(k: int) -> str:
    """Pool of what the 8-bit keys and values of attention layer ``k`` (local index) are multiplied by."""
    return f"kv_scales_{k}"


def conv_state(r: int) -> str:
    """Convolution state input of recurrent layer ``r`` (local index), in the paged layout its pool."""
    return f"conv_state_{r}"


def recurrent_state(r: int) -> str:
    """Recurrent state input of recurrent layer ``r`` (local index), in the paged layout its pool."""
    return f"recurrent_state_{r}"


def state_scales(r: int) -> str:
    """What the 8-bit recurrent states of recurrent layer ``r`` (local index) are multiplied by, in every layout."""
    return f"state_scales_{r}"


def state_ring(r: int, tensor: str) -> str:
    """``tensor`` of the ring of recurrent layer ``r`` (local index), in every layout."""
    return f"ring_{tensor}_{r}"


def is_recurrent_state(name: str) -> bool:
    """Whether this is a state input or a pool of recurrent states."""
    return name.startswith(recurrent_state(0)[:-1])


def present(past: str) -> str:
    """The output that replaces the state input ``past``: past_key_0 -> present_key_0, conv_state_0 -> present_..."""
    return "present_" + past.removeprefix("past_")
