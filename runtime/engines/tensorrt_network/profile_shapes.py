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
from hybridge.runtime.engines.tensorrt_network.plugin_calls import check_plugin_calls, plugin_tensors

Axes = Mapping[str, int]


def check_profile_shapes(
    network: NetworkInterpreter,
    inputs: Sequence[Binding],
    outputs: Sequence[Binding],
    profiles: Sequence[ProfileRecord],
) -> int:
    """Run ``network`` on shapes at each profile's ends; returns the number of runs.

    ``outputs`` that have the name of an input are left out. A dense network runs on shapes only. The shapes of a paged
    one depend on how many tokens a row has: there the integer inputs have values, with the tokens spread over the rows.

    EngineError: a layer does not accept its shapes there, no kernel of a plugin supports its shapes, or an output's
    shape differs from its binding.
    """
    known: set[tuple[int, ...]] = set()
    for profile in profiles:
        for axes, shapes in profile_ends(profile, inputs):
            key = tuple(size for shape in shapes.values() for size in shape)
            if key in known:  # both profiles may have it
                continue
            known.add(key)
            try:
                _check(network, axes, shapes, outputs)
            except EngineError as error:
                sizes = ", ".join(f"{name} {size}" for name, size in axes.items())
                raise EngineError(f"profile {profile.name} at {sizes}: {error}") from error
    return len(known)


def profile_ends(profile: ProfileRecord, inputs: Sequence[Binding]) -> Iterator[tuple[Axes, dict[str, list[int]]]]:
    """Minimum, optimum and maximum of all axes, and corners: one axis at the opposite end from all others."""
    present = [binding for binding in inputs if binding.name in profile.shapes]
    ends = _ends_of_axes(profile, present)
    least, optimum, most = ({axis: sizes[end] for axis, sizes in ends.items()} for end in range(3))
    corners = [{**least, axis: most[axis]} for axis in ends] + [{**most, axis: least[axis]} for axis in ends]
    for corner in (least, optimum, most, *corners):
        if ROWS in corner:
            # A row has at least one token, and needs no more than its blocks and slots.
            corner[ROWS] = min(corner[ROWS], corner[TOKENS])
            corner[ROW_BOUNDS] = corner[ROWS] + 1
        yield corner, {binding.name: _resolved(binding, corner) for binding in present}


def _ends_of_axes(profile: ProfileRecord, inputs: Sequence[Binding]) -> dict[str, list[int]]:
    """Least, optimum and most of each symbolic axis; EngineError if the shapes of ``inputs`` contradict one another."""
    ends: dict[str, list[int]] = {}
    for binding in inputs:
        for index, axis in enumerate(binding.shape):
            sizes = [shape[index] for shape in profile.shapes[binding.name]]
            expected = ends.setdefault(axis, sorted(sizes)) if isinstance(axis, str) else [axis] * 3
            if sizes != expected:
                raise EngineError(
                    f"profile {profile.name}: expected axis {index} of {binding.name} {expected}, found {sizes}"
                )
    if ROWS in ends and ends[ROW_BOUNDS] != [rows + 1 for rows in ends[ROWS]]:
        raise EngineError(
            f"profile {profile.name}: expected a bound more than {ends[ROWS]} rows, found {ends[ROW_BOUNDS]} bounds"
        )
    return ends


def check_within(profiles: Sequence[ProfileRecord], shapes: Mapping[str, Sequence[int]]) -> None:
    """EngineError if no profile supports the inputs' ``shapes`` of a step; inputs without a profile are left out."""
    outside = {profile.name: _outside(profile, shapes) for profile in profiles}
    if all(outside.values()):
        raise EngineError(f"expected shapes within one profile, found {'; '.join(map(str, outside.values()))}")


def _outside(profile: ProfileRecord, shapes: Mapping[str, Sequence[int]]) -> str | None:
    """The first of ``shapes`` that ``profile`` does not support."""
    for name, (least, _, most) in profile.shapes.items():
        found = shapes.get(name)
        if found is not None and not all(a <= n <= b for a, n, b in zip(least, found, most, strict=True)):
            return f"{name} {list(found)} for {profile.name}, which is {least} to {most}"
    return None


def _resolved(binding: Binding, axes: Axes) -> list[int]:
    return [axes[size] if isinstance(size, str) else size for size in binding.shape]


def _check(
    network: NetworkInterpreter, axes: Axes, shapes: Mapping[str, Sequence[int]], outputs: Sequence[Binding]
) -> None:
    tensors = {n: torch.empty(shape, dtype=network.input_type(n), device="meta") for n, shape in shapes.items()}
    if ROWS in axes:
        tensors |= _row_values(network, axes, shapes)
    found = network.run(tensors, plugin_tensors(network.description))
    check_plugin_calls(network.description, {name: tuple(value.shape) for name, value in found.items()})
    for output in (binding for binding in outputs if binding.name not in shapes):
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
