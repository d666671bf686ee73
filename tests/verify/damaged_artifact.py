"""A copy of an artifact that a test may damage: weights, graph, config; its manifest says that all is well."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hybridge.artifact.manifest import read_manifest, record_file, write_manifest
from hybridge.artifact.safetensors_file import read_safetensors


class DamagedArtifact:
    """``model`` and ``config`` may be changed as one likes; ``write`` puts them into ``folder``."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = Path(shutil.copytree(source, folder))
        self.model = onnx.load(folder / "model.onnx", load_external_data=False)
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())

    def write(self) -> Path:
        """The folder, with graph and config as they now are."""
        onnx.save(self.model, self.folder / "model.onnx")
        (self.folder / "config.json").write_text(json.dumps(self.config))
        manifest = read_manifest(self.folder)
        files = [record_file(self.folder, f.path) if f.scope == "full" else f for f in manifest.files]
        write_manifest(self.folder, replace(manifest, files=tuple(files)))
        return self.folder

    def weight(self, end: str, change: Callable[[np.ndarray], None]) -> None:
        """Let ``change`` edit the float32 tensor whose name ends in ``end`` in place."""
        shards = [read_safetensors(path) for path in (self.folder / "weights").iterdir()]
        (slot,) = (t for shard in shards for name, t in shard.tensors.items() if name.endswith(end))
        values = np.fromfile(slot.path, np.float32, slot.nbytes // 4, offset=slot.offset).reshape(slot.shape)
        before = values.copy()
        change(values)
        assert not np.array_equal(before, values)
        with slot.path.open("r+b") as file:
            file.seek(slot.offset)
            file.write(values.tobytes())

    def node(self, op_type: str, output: str = "", layer: int | None = None) -> onnx.NodeProto:
        """The node of ``op_type``, the one with an output that begins with ``output`` or the one of ``layer``."""
        found = [n for n in self.model.graph.node if n.op_type == op_type]
        if output:
            found = [n for n in found if any(name.startswith(output) for name in n.output)]
        if layer is not None:
            found = [n for n in found if any(name.endswith(f".{layer}") for name in n.output)]
        assert len(found) == 1, [list(n.output) for n in found]
        return found[0]

    def function_node(self, function: str, op_type: str, output: str) -> tuple[Any, onnx.NodeProto]:
        """The nodes of a function's body, or of a Scan inside it, and the one among them that makes ``output``."""
        body = next(f for f in self.model.functions if f.name == function)
        inner = [a.g.node for n in body.node for a in n.attribute if a.name == "body"]
        for nodes in (body.node, *inner):
            for node in nodes:
                if node.op_type == op_type and output in node.output:
                    return nodes, node
        raise AssertionError(f"{function} has no {op_type} that makes {output}")

    def constant(self, value: Any, dtype: type) -> str:
        """The name of a new initializer."""
        name = f"fault.{len(self.model.graph.initializer)}"
        self.model.graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def insert(self, before: onnx.NodeProto, op_type: str, inputs: list[str], **attributes: Any) -> str:
        """Insert a node of the graph before another; the name of its output."""
        return insert(self.model.graph.node, before, op_type, inputs, **attributes)


def insert(nodes: Any, before: onnx.NodeProto, op_type: str, inputs: list[str], **attributes: Any) -> str:
    """Insert a node into ``nodes`` before one of them; the name of its output."""
    place = next(i for i, node in enumerate(nodes) if node is before or node.output == before.output)
    name = f"fault.{op_type}.{place}"
    nodes.insert(place, helper.make_node(op_type, inputs, [name], **attributes))
    return name


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Replace an attribute of ``node``."""
    kept = [a for a in node.attribute if a.name != name]
    assert len(kept) == len(node.attribute) - 1, name
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
