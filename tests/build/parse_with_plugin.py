"""A script: parses a graph of one plugin with TensorRT-RTX and prints the types of the network's layers."""

from __future__ import annotations

import tensorrt_rtx as trt
from onnx import TensorProto, helper

NAMESPACE, NAME, VERSION = "trt_edgellm", "twice", "1"


class TwicePlugin(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
    """One input, one output of its shape."""

    def __init__(self) -> None:
        for base in TwicePlugin.__bases__:
            base.__init__(self)
        self.plugin_name, self.plugin_version, self.plugin_namespace = NAME, VERSION, NAMESPACE
        self.num_outputs = 1

    def get_capability_interface(self, kind):
        return self

    def get_output_data_types(self, types):
        return [types[0]]

    def get_output_shapes(self, inputs, shape_inputs, builder):
        return [trt.DimsExprs(inputs[0])]

    def configure_plugin(self, inputs, outputs):
        pass

    def supports_format_combination(self, position, tensors, count):
        return tensors[position].desc.format == trt.TensorFormat.LINEAR

    def get_fields_to_serialize(self):
        return trt.PluginFieldCollection([])

    def clone(self):
        return TwicePlugin()


class TwiceCreator(trt.IPluginCreatorV3One):
    """Creates the plugin."""

    def __init__(self) -> None:
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_namespace, self.plugin_version = NAME, NAMESPACE, VERSION
        self.field_names = trt.PluginFieldCollection([])

    def create_plugin(self, name, fields, phase):
        return TwicePlugin()


def main() -> None:
    creator = TwiceCreator()
    trt.get_plugin_registry().register_creator(creator, NAMESPACE)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(NAME, ["x"], ["y"], domain=NAMESPACE)], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(NAMESPACE, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    logger = trt.Logger(trt.Logger.ERROR)
    network = trt.Builder(logger).create_network(0)
    assert trt.OnnxParser(network, logger).parse(model.SerializeToString())
    print(*(network.get_layer(index).type.name for index in range(network.num_layers)))


if __name__ == "__main__":
    main()
