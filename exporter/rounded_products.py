"""The products of a quantised checkpoint whose inputs the graph rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from hybridge.artifact.dtypes import DType
from hybridge.exporter.checkpoint import Checkpoint
from hybridge.exporter.checkpoint.quantized.tensor import QuantizedTensor
from hybridge.exporter.families.parameters import EMBEDDING, Parameter
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.weights.source_files import SourceFiles

# The matrix that expands the latents of latent attention to keys and values.
_ABSORBED = ".kv_b_proj.weight"
_Way = tuple[DType, int | None]


def products_with_rounding(
    source: Checkpoint, parameters: Iterable[Parameter], options: ExportOptions, notes: list[str]
) -> frozenset[str]:
    """The weights of ``parameters`` whose products round their inputs; ``notes`` name those that do not."""
    parameters = tuple(parameters)
    names = {name for p in parameters for name in p.sources}
    rounding = {n: source.quantized[n] for n in sorted(names & source.quantized.keys()) if source.quantized[n].inputs}
    if not rounding:
        return frozenset()
    if not options.rounded_inputs:
        notes.append(f"the checkpoint rounds the inputs of {len(rounding)} products; the graph does not, as requested")
        return frozenset()
    uneven = {name for name, weight in rounding.items() if _has_uneven_groups(weight)}
    if uneven:
        notes.append(
            f"the inputs of {len(uneven)} products are not rounded: their size is no multiple of the group size"
        )
    absorbed = {name for name in rounding if name.endswith(_ABSORBED)}
    if absorbed:
        notes.append(
            f"the inputs of {len(absorbed)} products of latent attention are not rounded: queries and outputs are "
            "multiplied by these matrices, not latents"
        )
    even = {name: weight for name, weight in rounding.items() if name not in uneven | absorbed}
    linear = {p.source for p in parameters if len(p.shape) == 2 and p.name != EMBEDDING and not p.parts}
    experts = frozenset(_of_experts(parameters, even))
    rounded = frozenset(even) & (linear | experts)
    if left := len(even) - len(rounded):
        notes.append(
            f"the inputs of {left} products of experts are not rounded: the experts of a layer, or those of other "
            "layers, round theirs in another way"
        )
    return rounded


def _of_experts(parameters: Iterable[Parameter], weights: Mapping[str, QuantizedTensor]) -> Iterator[str]:
    """The weights of the layers whose experts all round their inputs in the way of most layers.

    All layers of the graph share one body of the operator.
    """
    layers: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        if len(parameter.shape) == 3 and any(name in weights for name in parameter.sources):
            layers.setdefault(
                parameter.name.rpartition(".")[0] + parameter.sources[0].rpartition("experts")[0], []
            ).append(parameter)
    with SourceFiles() as sources:
        ways = {layer: way for layer, pair in layers.items() if (way := _way(pair, weights, sources)) is not None}
    if not ways:
        return
    ((usual, _),) = Counter(ways.values()).most_common(1)
    for layer, way in ways.items():
        if way == usual:
            yield from (name for parameter in layers[layer] for name in parameter.sources)


def _way(pair: list[Parameter], weights: Mapping[str, QuantizedTensor], sources: SourceFiles) -> _Way | None:
    """How the experts with the parameters up and down round their inputs; None if not all in the same way."""
    names = [name for parameter in pair for name in parameter.sources]
    if len(pair) != 2 or any(name not in weights for name in names):
        return None
    roundings = [weights[name].inputs for name in names]
    ways = {(rounding.dtype, rounding.group) for rounding in roundings if rounding is not None}
    if len(ways) > 1 or not all(_agree(parameter, weights, sources) for parameter in pair):
        return None
    return next(iter(ways))


def _agree(parameter: Parameter, weights: Mapping[str, QuantizedTensor], sources: SourceFiles) -> bool:
    """Whether the matrices of each expert that have the same input, a gate and what it gates, have one scale of it."""
    each = max(1, len(parameter.parts) // parameter.shape[0])
    if each == 1:
        return True
    scales = [_scale(weights[name], sources) for name in parameter.parts]
    return all(len(set(scales[start : start + each])) == 1 for start in range(0, len(scales), each))


def _scale(weight: QuantizedTensor, sources: SourceFiles) -> bytes:
    scale = None if weight.inputs is None else weight.inputs.scale
    if scale is None:
        return b""
    if scale.stored is not None:
        return sources.read(scale.stored).tobytes()
    return b"".join(piece.tobytes() for piece in scale.pieces())


def _has_uneven_groups(weight: QuantizedTensor) -> bool:
    """Whether the size of inputs is not a multiple of the number of features that share a scale."""
    group = None if weight.inputs is None else weight.inputs.group
    return group is not None and group > 0 and weight.shape[1] % group != 0
