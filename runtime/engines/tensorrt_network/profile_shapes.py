"""Evaluates a network's shapes at the ends of its optimization profiles, without the values of floating tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from hybridge.artifact.bindings import Binding
from hybridge.artifact.engine_record import ProfileRecord
from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import QUERY_START_LOC, SEQ_LENS
from hybridge.artifact.paged import ROW_BOUNDS, ROWS, TOKENS
from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter

Axes = Mapping[str, int]


def check_profile_shapes(
    network: NetworkInterpreter,
    inputs: Sequence[Binding],
    outputs: Sequence[Binding],
    profiles: Sequence[ProfileRecord],
    corners: bool = True,
) -> int:
    """Run ``network`` on shapes at each profile's ends; returns the number of runs.

    ``corners``: also with one axis at the opposite end from all others.

    A dense network runs on shapes only. The shapes of a paged one depend on how many tokens a row has: there the
    integer inputs have values, with the tokens spread over the rows.

    EngineError: a layer does not accept its shapes there, or an output's shape differs from its binding.
    """
    count = 0
    for profile in profiles:
        for axes, shapes in profile_ends(profile, inputs, corners):
            try:
                _check(network, axes, shapes, outputs)
            except EngineError as error:
                sizes = ", ".join(f"{name} {size}" for name, size in axes.items())
                raise EngineError(f"profile {profile.name} at {sizes}: {error}") from error
            count += 1
    return count


def profile_ends(
    profile: ProfileRecord, inputs: Sequence[Binding], corners: bool
) -> Iterator[tuple[Axes, dict[str, list[int]]]]:
    """Minimum, optimum and maximum of all axes; ``corners``: also one axis at the opposite end from all others."""
    ends: dict[str, list[int]] = {}
    for binding in inputs:
        if binding.name in profile.shapes:
            for index, axis in enumerate(binding.shape):
                if isinstance(axis, str):
                    ends[axis] = [shape[index] for shape in profile.shapes[binding.name]]
    least, optimum, most = ({axis: sizes[end] for axis, sizes in ends.items()} for end in range(3))
    sizes_of_axes = [least, optimum, most]
    for axis in ends if corners else ():
        sizes_of_axes += [{**least, axis: most[axis]}, {**most, axis: least[axis]}]
    seen: set[tuple[int, ...]] = set()
    for corner in sizes_of_axes:
        if ROWS in corner:
            # A row has at least one token, and needs no more than its blocks and slots.
            corner[ROWS] = min(corner[ROWS], corner[TOKENS])
            corner[ROW_BOUNDS] = corner[ROWS] + 1
        key = tuple(corner.values())
        if key not in seen:
            seen.add(key)
            resolved = (binding for binding in inputs if binding.name in profile.shapes)
            yield corner, {binding.name: _resolved(binding, corner) for binding in resolved}


def _resolved(binding: Binding, axes: Axes) -> list[int]:
    return [axes[size] if isinstance(size, str) else size for size in binding.shape]


def _check(
    network: NetworkInterpreter, axes: Axes, shapes: Mapping[str, Sequence[int]], outputs: Sequence[Binding]
) -> None:
    tensors = {n: torch.empty(shape, dtype=network.input_type(n), device="meta") for n, shape in shapes.items()}
    if ROWS in axes:
        tensors |= _row_values(network, axes, shapes)
    found = network.run(tensors)
    for output in outputs:
        expected = [size if isinstance(size, int) else axes[size] for size in output.shape]
        if list(found[output.name].shape) != expected:
            raise EngineError(f"expected {output.name} {expected}, found {list(found[output.name].shape)}")


def _row_values(
    network: NetworkInterpreter, axes: Axes, shapes: Mapping[str, Sequence[int]]
) -> dict[str, torch.Tensor]:
    """The integer inputs for rows of ``axes`` tokens, split as evenly as possible; no token has a slot."""
    bounds = torch.linspace(0, axes[TOKENS], axes[ROWS] + 1).floor()
    values = {QUERY_START_LOC: bounds, SEQ_LENS: bounds.diff()}
    found = {}
    for name, shape in shapes.items():
        dtype = network.input_type(name)
        if dtype in (torch.int32, torch.int64):  # pools of bytes are int8
            found[name] = values.get(name, torch.zeros(shape)).to(dtype)
    return found
