"""State shared by all plugin objects of one layer: TensorRT clones a plugin many times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hybridge.trt_plugins.plugins.fields import ALIASED, CAPABILITIES, LAYER, WORKSPACE, WORKSPACE_UNIT, FieldValues
from hybridge.trt_plugins.spec import AttributeValue, OpSpec

STATE_OUTPUT_SUFFIX = "_out"


@dataclass
class Workspace:
    """Bytes of workspace requested from TensorRT; grows while the engine is built."""

    nbytes: int = 0


@dataclass(frozen=True)
class PluginLayer:
    """One node of an operator: its name, its attributes, and the compute capabilities that it is built for.

    aliased: declare to TensorRT that states are updated in place.
    """

    spec: OpSpec
    name: str
    attributes: Mapping[str, AttributeValue]
    capabilities: tuple[str, ...] = ()
    workspace: Workspace = field(default_factory=Workspace)
    aliased: bool = True

    def field_values(self) -> dict[str, AttributeValue]:
        """The fields of a serialized plugin, from which ``layer_from_fields`` makes this layer again."""
        return {
            **self.attributes,
            CAPABILITIES: ",".join(self.capabilities),
            ALIASED: int(self.aliased),
            LAYER: self.name,
            WORKSPACE: -(-self.workspace.nbytes // WORKSPACE_UNIT),
        }


def layer_from_fields(spec: OpSpec, name: str, values: FieldValues) -> PluginLayer:
    """The layer of a plugin's fields; ``name`` is what TensorRT calls it, unless the fields know better."""
    extras = values.extras
    capabilities = tuple(part for part in str(extras.get(CAPABILITIES, "")).split(",") if part)
    workspace = Workspace(int(extras.get(WORKSPACE, 0)) * WORKSPACE_UNIT)
    aliased = bool(extras.get(ALIASED, True))
    return PluginLayer(spec, str(extras.get(LAYER, "")) or name, values.attributes, capabilities, workspace, aliased)


def state_inputs(spec: OpSpec) -> dict[int, int]:
    """Output index to the input index of the state that it replaces: ``state_out`` replaces ``state``."""
    names = [tensor.name for tensor in spec.inputs]
    return {
        index: names.index(output.name.removesuffix(STATE_OUTPUT_SUFFIX))
        for index, output in enumerate(spec.outputs)
        if output.name.endswith(STATE_OUTPUT_SUFFIX)
    }
