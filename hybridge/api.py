"""The public functions. Each imports what it needs only when it is called."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridge.artifact.call_arguments import checked_path, known_arguments

if TYPE_CHECKING:
    from hybridge.artifact.engine_record import EngineRecord
    from hybridge.artifact.progress import Progress
    from hybridge.evaluation.report import EvaluateReport
    from hybridge.exporter.export import ExportReport
    from hybridge.inspection import Inspection
    from hybridge.quantization.report import QuantizeReport
    from hybridge.verification.report import VerifyReport

StrPath = str | os.PathLike[str]


@known_arguments
def export(
    checkpoint: StrPath,
    out: StrPath,
    *,
    dtype: str = "auto",
    state_dtype: str = "float32",
    state_rings: bool = False,
    kv_dtype: str = "auto",
    layout: str = "dense",
    kernels: str = "required",
    mtp: bool = True,
    rounded_inputs: bool = True,
    max_batch_size: int = 8,
    max_seq_len: int | None = None,
    all_logits: bool = False,
    weights: str = "auto",
    quantize: str | None = None,
    quantize_embedding: str | None = None,
    overwrite: bool = False,
    scan: bool = True,
    full_hash: bool = False,
    ignore_config_fields: Iterable[str] = (),
    progress: Progress | None = None,
) -> ExportReport:
    """Export the Hugging Face checkpoint ``checkpoint`` into the artifact folder ``out``.

    checkpoint: a folder, or the id of a model on the Hugging Face hub ("owner/name"), which is downloaded if
    huggingface_hub is installed.

    dtype: compute type, "auto" (the checkpoint's), "float16", "bfloat16" or "float32", also as "fp16", "half", "bf16"
    or "fp32"; stored weights keep their type.
    state_dtype: type of the recurrent states, "float32" or dtype, or "int8" or "fp8_e4m3": 8 bits with a scale per row.
    state_rings: write a recurrent state once in 16 decoded tokens, whose inputs are in a ring beside it.
    kv_dtype: type of keys and values, "auto" (dtype) or, in layout "paged", "fp8_e4m3": 8 bits with a scale per token
    and head. kernels: "required" refuses sizes of recurrent layers that no CUDA kernel supports, "optional" exports
    them for ONNX Runtime and for TensorRT's own layers.
    rounded_inputs: round inputs of products where a quantised checkpoint does (int8, fp8, nvfp4), in the graph itself.
    mtp: in layout "paged", write the checkpoint's multi-token prediction head too, where it has one.
    max_batch_size, max_seq_len: maximum rows and tokens (max_seq_len None: the checkpoint's). all_logits: logits of
    every token, not only of the last. weights: "reflink", "link" (hard links), "copy", or "auto": the first of these
    that the file system supports. quantize: "int4", "int8", "fp8", "nvfp4" or "mxfp4" rounds each matrix, embeddings
    too, to the nearest numbers of that type (integers: 128 columns share a scale; heads get 8 bits); the function
    ``quantize`` finds more precise ones. quantize_embedding: "int4" or "int8" rounds the embedding, which a tied head
    reads too, also beside a checkpoint's quantised weights. scan: check for weights that are not finite or exceed
    dtype's range. full_hash: hash all weights, not only their headers. ignore_config_fields: unknown config fields to
    accept.

    A subclass of HybridgeError (``hybridge.errors``) says what was expected, what was found and what to do; ``out`` is
    then unchanged, as after an interrupt.
    """
    parameters = locals()
    from hybridge.exporter.export import export_checkpoint
    from hybridge.exporter.options import ExportOptions
    from hybridge.requirements import require

    options = ExportOptions.named(**_options(ExportOptions, parameters))
    require("torch", "onnxscript")
    return export_checkpoint(*_folders(checkpoint, out), options, progress)


@known_arguments
def quantize(
    checkpoint: StrPath,
    out: StrPath,
    *,
    format: str = "int4",
    group_size: int | None = None,
    bits: float | None = None,
    method: str = "mse",
    text: StrPath | None = None,
    zero_points: bool = False,
    keep_head: bool = False,
    device: str = "cpu",
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Write ``checkpoint`` (as for ``export``) with quantised weights into the folder ``out``.

    ``out`` is an ordinary checkpoint in the format of compressed-tensors, which vLLM and transformers load too.
    format: "int4", "int8", "fp8", "nvfp4" or "mxfp4". group_size: columns that share a scale of integers, 16, 32, 64 or
    128 (None: 32 for int4, 128 for int8). bits: choose int4 (of any group size), int8 or no change for each group of
    matrices, so that weights have this many bits on average, by how far the predictions move when that group alone is
    quantised. method: "rtn" takes each scale from the largest weight of its group, "mse"
    the scale of least squared error. The two others run the text file ``text`` in transformers, in at most 32 windows
    of 512 tokens (without a text, samples of the model itself): "awq" multiplies the columns of matrices by scales of
    their inputs, by which norms and the matrices before them are divided, and "gptq" rounds each column so that it
    compensates for the errors of earlier ones. device: "cpu" or "cuda", where the model and gptq compute.
    zero_points: give each group of int4 weights a zero point, which lowers the errors; TensorRT does not build
    them. keep_head: do not quantise the LM head.

    resume: go on where a run of the same checkpoint, settings and text was killed or interrupted, or ended by a full
    disk, too little memory or a failing GPU; it left the layers that it had finished in a hidden folder beside ``out``,
    which the next run without ``resume`` removes.

    The head gets 8 bits otherwise. Embeddings, convolutions, norms, routers, gates of gated delta nets, prediction
    heads and vectors stay as they are. HybridgeError when it cannot be quantised or written; ``out`` is then unchanged.
    """
    parameters = locals()
    from hybridge.quantization.options import QuantizeOptions
    from hybridge.quantization.quantizer import quantize_checkpoint

    options = QuantizeOptions(**_options(QuantizeOptions, parameters))
    return quantize_checkpoint(*_folders(checkpoint, out), options, progress)


@known_arguments
def verify(
    checkpoint: StrPath,
    out: StrPath,
    *,
    engine: str = "auto",
    prompt_lengths: Iterable[int] | None = None,
    decode_steps: int = 16,
    tolerance: float | None = None,
    speculative_tokens: int = 0,
    draft_states: str = "auto",
    float32: bool = False,
    progress: Progress | None = None,
) -> VerifyReport:
    """Compare the artifact ``out`` with transformers running ``checkpoint`` (as for ``export``) in float32.

    engine: what runs the artifact; "auto" uses the engine that generates, and also runs the file as exported.
    prompt_lengths: tokens of each random prompt (None: lengths that cross the model's chunks and sliding windows);
    decode_steps: tokens generated after it; tolerance: largest relative L2 error of a tensor (None: the default);
    speculative_tokens: also check steps with that many draft tokens a row, of a paged artifact; draft_states: take
    them back by "snapshot" or "replay"; float32: compute 16-bit tensors of "tensorrt-network" in float32. It needs up
    to 1.5 times the memory of the model in float32. The report's ``passed`` is the verdict, and
    ``first_failing_layer`` names the layer. HybridgeError when the comparison cannot be made.
    """
    from hybridge.verification.options import VerifyOptions
    from hybridge.verification.verifier import verify as compare

    options = VerifyOptions(
        engine=engine,
        prompt_lengths=None if prompt_lengths is None else tuple(prompt_lengths),
        decode_steps=decode_steps,
        tolerance=tolerance,
        speculative_tokens=speculative_tokens,
        draft_states=draft_states,
        float32=float32,
    )
    return compare(*_folders(checkpoint, out), options, progress)


@known_arguments
def evaluate(
    reference: StrPath,
    out: StrPath,
    text: StrPath,
    *,
    engine: str = "auto",
    window: int = 512,
    windows: int | None = None,
    exact_products: bool = False,
    progress: Progress | None = None,
) -> EvaluateReport:
    """Compare the predictions of ``out`` with those of ``reference`` over the text file ``text``.

    Each is an artifact, computed by ``engine``, or a checkpoint (as for ``export``), computed by transformers in
    float32. The report has perplexities, KL divergences, the share of equal top tokens and bytes of weights.

    As in llama-perplexity, windows of ``window`` tokens follow one another (at most ``windows``), each computed from
    empty states, and the tokens of its second half but the first are scored. exact_products: onnxruntime does not round
    inputs of quantised weights. HybridgeError when the two have different
    vocabularies or tokenizers, or cannot run.
    """
    parameters = locals()
    from hybridge.evaluation.evaluator import evaluate as compare
    from hybridge.evaluation.options import EvaluateOptions
    from hybridge.hub import checkpoint_folder

    options = EvaluateOptions(**_options(EvaluateOptions, parameters))
    source, folder = checked_path("reference", reference), checked_path("out", out)
    return compare(checkpoint_folder(source), checkpoint_folder(folder), checked_path("text", text), options, progress)


@known_arguments
def build_engine(
    out: StrPath,
    *,
    target: str | None = None,
    compute_capabilities: Iterable[str] = (),
    max_batch_size: int | None = None,
    max_seq_len: int | None = None,
    plugins: str = "auto",
    plugin_states: str = "aliased",
    plugin_mixers: str = "joined",
    speculative_tokens: int = 0,
    draft_states: str = "snapshot",
    mtp: bool = True,
    library: str = "auto",
    workspace_mib: int | None = None,
    optimization_level: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EngineRecord:
    """Build a TensorRT engine from the artifact ``out``; it is written into the artifact's folder.

    target: a preset in configs/ or the path of a TOML file. compute_capabilities: GPUs such as "8.6", instead of
    the preset's. max_batch_size, max_seq_len: rows and tokens the engine is built for. plugins: "on" (CUDA plugins),
    "off" (native layers) or "auto" (on where they support target and sizes); plugin_states: "aliased" (updated in
    place) or "separate"; plugin_mixers: "joined" (one plugin a Mamba2 mixer) or "separate" (two). speculative_tokens:
    draft tokens that a row of a paged artifact may have behind its own in one step. draft_states: how their states are
    rolled back, "snapshot" (a slot for the state after each) or "replay" (a second engine advances the states). mtp:
    with draft tokens, build an engine of the artifact's prediction head too, where it has one.
    library: "auto", "tensorrt" or "tensorrt_rtx" (which needs no GPU). HybridgeError when the engine cannot be built.
    """
    parameters = locals()
    from hybridge.artifact.progress import NoProgress
    from hybridge.trt_plugins.build.builder import build_engine as build
    from hybridge.trt_plugins.build.options import BuildOptions

    options = BuildOptions(**_options(BuildOptions, parameters))
    return build(checked_path("out", out), options, progress or NoProgress())


@known_arguments
def inspect(path: StrPath, check: bool = False) -> Inspection:
    """Describe a checkpoint folder, an artifact folder or an engine file; needs no torch.

    check: first compare every file of an artifact or an engine with the hash recorded when it was written.
    HybridgeError when ``path`` is none of them or damaged, or for ``check`` of a checkpoint, which has no hashes.
    """
    from hybridge.inspection import inspect_path

    return inspect_path(checked_path("path", path), check)


def _folders(checkpoint: StrPath, out: StrPath) -> tuple[Path, Path]:
    """The folder of ``checkpoint``, downloaded if this is a model id, and ``out``."""
    from hybridge.hub import checkpoint_folder

    source, folder = checked_path("checkpoint", checkpoint), checked_path("out", out)
    return checkpoint_folder(source), folder


def _options(kind: type, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The ``parameters`` of a function that are settings of ``kind`` under the same names."""
    from hybridge.artifact.settings import settings_of

    return {
        each.name: tuple(parameters[each.name]) if each.several else parameters[each.name] for each in settings_of(kind)
    }
