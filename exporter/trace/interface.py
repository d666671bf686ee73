"""The declared inputs and outputs of an exported graph: one list that tracing, config.json and checks use."""

from __future__ import annotations

from hybridge.artifact import names
from hybridge.artifact.bindings import BATCH, NUM_SLOTS, SEQ, Binding, GraphBindings
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dense import cache_bindings
from hybridge.artifact.dtypes import DType
from hybridge.artifact.layer_config import RecurrentLayerConfig
from hybridge.artifact.paged import NUM_LOGITS, PAGED, STEP_INPUTS, TOKENS, kv_pool_bindings, state_bindings
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.recurrent_config import RecurrentConfig, with_ring
from hybridge.exporter.options import ExportOptions

# Without --max-seq-len, a model whose config states no limit gets this one.
DEFAULT_MAX_SEQ_LEN = 4096


def graph_bindings(config: DecoderConfig, options: ExportOptions, dtype: DType) -> GraphBindings:
    """Inputs and outputs of the layout that ``options`` ask for, in graph order."""
    if options.layout == PAGED:
        return _paged_bindings(config, options, dtype)
    inputs = [
        Binding(names.INPUT_IDS, DType.INT64, (BATCH, SEQ)),
        Binding(names.CONTEXT_LENGTHS, DType.INT32, (BATCH,)),
        Binding(names.PAST_LENGTHS, DType.INT32, (BATCH,)),
        *_states(config, options, dtype),
    ]
    vocab = config.vocab_size
    logits: tuple[int | str, ...] = (BATCH, SEQ, vocab) if options.all_logits else (BATCH, vocab)
    hidden = Binding(names.HIDDEN_STATES, DType.FLOAT32, (BATCH, SEQ, config.hidden_size))
    outputs = [Binding(names.LOGITS, DType.FLOAT32, logits) if options.head else hidden]
    outputs += [Binding(s.replaced_by, s.dtype, s.shape) for s in inputs if s.replaced_by is not None]
    return GraphBindings(tuple(inputs), tuple(outputs))


def _paged_bindings(config: DecoderConfig, options: ExportOptions, dtype: DType) -> GraphBindings:
    inputs = [*STEP_INPUTS]
    for k, attention in enumerate(config.attention_bodies):
        inputs += kv_pool_bindings(k, attention.kv, options.kv_cache_dtype(dtype))
    for r, body in enumerate(config.recurrent_bodies):
        inputs += state_bindings(r, _states_of(body, options), (dtype, options.state_dtype), NUM_SLOTS, body.layer_type)
    outputs = [Binding(names.LOGITS, DType.FLOAT32, (NUM_LOGITS, config.vocab_size))]
    outputs += [Binding(s.replaced_by, s.dtype, s.shape) for s in inputs if s.replaced_by is not None]
    return GraphBindings(tuple(inputs), tuple(outputs))


def mtp_bindings(config: RuntimeConfig) -> GraphBindings:
    """The inputs of a multi-token prediction head: the paged layout's, and hidden states before the pools."""
    leading = [b for b in config.bindings.inputs if not b.is_state]
    hidden = (
        Binding(names.HIDDEN_STATES, config.dtype, (TOKENS, config.hidden_size)),
        Binding(names.IS_OWN, DType.INT32, (TOKENS,)),
    )
    return GraphBindings((*leading, *hidden, *config.bindings.states), config.bindings.outputs)


def _states(config: DecoderConfig, options: ExportOptions, dtype: DType) -> list[Binding]:
    states: list[Binding] = []
    for k, attention in enumerate(config.attention_bodies):
        states += cache_bindings(k, attention.kv, dtype)
    for r, body in enumerate(config.recurrent_bodies):
        states += state_bindings(r, _states_of(body, options), (dtype, options.state_dtype), BATCH, body.layer_type)
    return states


def _states_of(body: RecurrentConfig, options: ExportOptions) -> RecurrentLayerConfig:
    return with_ring(body) if options.state_rings else body.recurrent


def sequence_limit(config: DecoderConfig, options: ExportOptions) -> int:
    """The most tokens of a sequence."""
    return options.max_seq_len or config.max_position_embeddings or DEFAULT_MAX_SEQ_LEN


def runtime_config(
    config: DecoderConfig, options: ExportOptions, dtype: DType, eos_token_ids: tuple[int, ...]
) -> RuntimeConfig:
    """The contents of config.json."""
    return RuntimeConfig(
        model_type=config.model_type,
        layout=options.layout,
        dtype=dtype,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_batch_size=options.max_batch_size,
        max_seq_len=sequence_limit(config, options),
        layer_types=config.layer_types,
        kv_layers=tuple(body.kv for body in config.attention_bodies),
        kv_cache_dtype=options.kv_cache_dtype(dtype),
        recurrent_layers=tuple(_states_of(body, options) for body in config.recurrent_bodies),
        recurrent_state_dtype=options.state_dtype,
        conv_state_dtype=dtype,
        eos_token_ids=eos_token_ids,
        bindings=graph_bindings(config, options, dtype),
    ).check()
