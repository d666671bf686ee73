"""One operator as a plugin, without TensorRT's classes: types, shapes, workspace, and the launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError, UnsupportedError
from hybridge.trt_plugins.call_check import TensorType, bind_types, check_call
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits
from hybridge.trt_plugins.kernels.launcher import BoundPlan
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.plugins.calls import CallRange, Planner, largest_workspace
from hybridge.trt_plugins.plugins.kernel_calls import kernel_call, plugin_plan
from hybridge.trt_plugins.plugins.layer import PluginLayer
from hybridge.trt_plugins.plugins.tactics import tactics, variant_of

# Shapes whose launches stay prepared; an engine alternates between a few (chunks of a prompt, decode).
READY_SHAPES = 16


class PluginDevice(Protocol):
    """The part of ``KernelDevice`` that a plugin uses."""

    @property
    def traits(self) -> DeviceTraits: ...

    def bind(self, plan: CallPlan) -> BoundPlan: ...


class OpPlugin:
    """The plugin of one layer in one execution context. Clones have their own launches.

    variants: kernel variants of the operator that ``planner`` supports.
    """

    def __init__(
        self,
        layer: PluginLayer,
        planner: Planner,
        device: Callable[[], PluginDevice],
        variants: tuple[str, ...] = (),
    ) -> None:
        self.layer = layer
        self._planner, self._device, self._variants = planner, device, variants
        self._variant = ""
        self._calls: CallRange | None = None
        self._ready: dict[tuple[tuple[int, ...], ...], BoundPlan] = {}
        self.bound: BoundPlan | None = None
        self.shapes: tuple[tuple[int, ...], ...] = ()

    def clone(self) -> OpPlugin:
        """A plugin of the same layer for another context, with the same calls and tactic."""
        other = OpPlugin(self.layer, self._planner, self._device, self._variants)
        other._calls, other._variant = self._calls, self._variant
        return other

    def output_dtypes(self, inputs: Sequence[DType | None]) -> list[DType]:
        """Types of the outputs; UnsupportedError where the inputs' are not those of the operator."""
        self._bind_types(inputs)
        spec = self.layer.spec
        found = [inputs[spec.output_source(output)] for output in spec.outputs]
        return [dtype for dtype in found if dtype is not None]

    def supports(self, position: int, dtypes: Sequence[DType | None]) -> bool:
        """Whether tensor ``position`` (inputs, then outputs) may have its type, given the tensors before it."""
        spec = self.layer.spec
        count = len(spec.inputs)
        if position >= count:
            return dtypes[position] is dtypes[spec.output_source(spec.outputs[position - count])]
        try:
            self._bind_types(dtypes[: position + 1])
        except UnsupportedError:
            return False
        return True

    def call_range(
        self, dtypes: Sequence[DType | None], least: Sequence[Sequence[int]], most: Sequence[Sequence[int]]
    ) -> CallRange:
        """The calls whose inputs have shapes from ``least`` to ``most``.

        UnsupportedError where inputs contradict the operator's declaration or one another.
        """
        spec, attributes = self.layer.spec, self.layer.attributes
        checked = [
            check_call(spec, [TensorType(_known(d), tuple(s)) for d, s in zip(dtypes, side, strict=True)], attributes)
            for side in (least, most)
        ]
        bounds = {name: (size or 1, checked[1].dims[name] or 1) for name, size in checked[0].dims.items()}
        types, given = tuple(checked[0].types.items()), tuple(attributes.items())
        return CallRange(spec, given, types, tuple(bounds.items()), checked[0].has_time)

    def configure(self, calls: CallRange) -> None:
        """Set the calls that later queries refer to."""
        self._calls = calls

    def tactics(self) -> tuple[int, ...]:
        """Tactics that TensorRT may choose from for the configured calls; empty if there is only one."""
        if self._calls is None:
            return ()
        found = tuple(tactics(self._calls, self.layer.capabilities, self._planner, self._variants))
        return found if len(found) > 1 else ()

    def choose(self, tactic: int) -> None:
        """Use ``tactic`` from now on; 0 is the planner's choice. EngineError for an unknown number."""
        variant = variant_of(tactic, self._variants)
        if variant != self._variant:
            self._variant, self.bound = variant, None
            self._ready.clear()

    def workspace_bytes(self, calls: CallRange) -> int:
        """Workspace bytes that suffice for every call of ``calls`` and every tactic, on every GPU of the engine."""
        offered = tactics(calls, self.layer.capabilities, self._planner, self._variants)
        nbytes = max(largest_workspace(each, self.layer.capabilities, self._planner) for each in offered.values())
        self.layer.workspace.nbytes = max(self.layer.workspace.nbytes, nbytes)
        return nbytes

    def prepare(self, inputs: Sequence[TensorLayout], outputs: Sequence[TensorLayout]) -> BoundPlan:
        """Plan, load and pack the launches for these shapes; they stay ``bound`` until the next call.

        They expect addresses in the order of the plugin's inputs and outputs.

        UnsupportedError: no kernel runs them. EngineError: the plan needs more workspace than the engine has.
        """
        self.shapes = tuple(layout.shape for layout in inputs)
        self.bound = self._ready.get(self.shapes)
        if self.bound is not None:
            return self.bound
        spec = self.layer.spec
        check_call(spec, [TensorType(layout.dtype, layout.shape) for layout in inputs], self.layer.attributes)
        device = self._device()
        call = kernel_call(spec, self.layer.attributes, inputs, outputs, self._variant)
        plan = plugin_plan(spec, self._planner(call, device.traits))
        if plan.workspace_bytes > self.layer.workspace.nbytes:
            raise EngineError(
                f"expected a step that needs at most {self.layer.workspace.nbytes} bytes of workspace (the engine was "
                f"built for these), found {plan.workspace_bytes}: build the engine on this device"
            )
        if len(self._ready) >= READY_SHAPES:
            del self._ready[next(iter(self._ready))]
        self.bound = self._ready[self.shapes] = device.bind(plan)
        return self.bound

    def shapes_text(self) -> str:
        """The shapes of the last ``prepare``, by input name."""
        named = zip(self.layer.spec.inputs, self.shapes, strict=False)
        return ", ".join(f"{tensor.name} {list(shape)}" for tensor, shape in named)

    def _bind_types(self, dtypes: Sequence[DType | None]) -> None:
        spec = self.layer.spec
        bind_types(spec, [(tensor, _known(dtype)) for tensor, dtype in zip(spec.inputs, dtypes, strict=False)])


def _known(dtype: DType | None) -> DType:
    if dtype is None:
        raise UnsupportedError("expected a tensor type that artifacts have, found another; export the checkpoint again")
    return dtype
