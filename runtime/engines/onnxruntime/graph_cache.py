"""Rewritten graphs on disk, so that a later start needs neither onnx_ir nor the passes.

An entry is one file: a line with the sha256 of the rest, a line of JSON, then the serialised model. It holds the
locations of weights, not the weights. Its name is the hash of everything that the graph depends on, which the entry
holds, too.
Files are written under another name and renamed; an entry that does not match its hash or its key is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

import onnxruntime as ort

from hybridge.artifact import limits
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.limits import CACHE_ENTRY_BYTES
from hybridge.artifact.untrusted_file import read_inside
from hybridge.artifact.user_cache import is_private, user_cache_folder
from hybridge.artifact.written_file import written_file
from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library, library_failed, library_key
from hybridge.runtime.engines.onnxruntime.graph_form import StateLayout
from hybridge.runtime.engines.onnxruntime.opened_graph import graph_digest
from hybridge.runtime.engines.onnxruntime.session_graph import (
    DenseGraph,
    GraphWeight,
    PagedGraph,
    Part,
    QuantizedMatrix,
    StoredTensor,
)

_FORMAT = 3
_SUFFIX = ".graph"

G = TypeVar("G", bound="DenseGraph | PagedGraph")


class GraphCache:
    """Rewritten graphs in ``folder``, which is made when the first one is stored."""

    def __init__(self, folder: Path, max_entries: int = 128) -> None:
        """max_entries: forms of some dozens of artifacts; the least recently used are removed first."""
        self.folder, self.max_entries = folder, max_entries

    def get(self, artifact: Path, form: str, rewrite: Callable[[], G]) -> G:
        """The graph of the artifact folder in ``form``: from disk where a valid entry is there, else ``rewrite()``.

        form: everything that the graph depends on besides the artifact and the installed packages.

        Without a folder that can be read and written, the graph is rewritten at every start; also, with a warning, if
        other users can write the folder, since they could insert any graph.
        """
        key = _key(artifact, form)
        if key is None or not is_private(self.folder, "graphs are rewritten at every start"):
            return rewrite()
        path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}{_SUFFIX}"
        found = _read(path, key)
        if found is not None and not (found.uses_cpu_library and cpu_library().path is None):
            return cast(G, found)  # its class follows from the artifact's layout
        graph = rewrite()
        # The artifact may have been replaced since: the new graph must not be stored under the old key. Nor must a
        # graph that lacks the library's operators because of a failure that may be temporary.
        if _key(artifact, form) == key and not library_failed():
            with contextlib.suppress(OSError):
                self._store(path, _entry(graph, key))
        return graph

    def _store(self, path: Path, entry: bytes) -> None:
        if len(entry) > CACHE_ENTRY_BYTES:
            return
        with written_file(path, lasting=False) as file:
            file.write(entry)
        entries = sorted(self.folder.glob(f"*{_SUFFIX}"), key=lambda entry: entry.stat().st_mtime)
        for old in entries[: -self.max_entries]:
            old.unlink(missing_ok=True)


def user_graph_cache() -> GraphCache | None:
    """The cache in the user's cache folder; None for a user who has none."""
    try:
        return GraphCache(user_cache_folder("graphs"))
    except RuntimeError:
        return None


def _key(artifact: Path, form: str) -> str | None:
    """Everything that the graph depends on, as text; None if one of the files cannot be read."""
    digest = graph_digest(artifact)
    try:
        code, onnx_ir = _code_hash(), _onnx_ir_hash()
    except OSError:
        return None
    if digest is None:
        return None
    installed = [ort.__version__, ort.get_build_info(), _processor(), onnx_ir, library_key()]
    return json.dumps([_FORMAT, form, code, *installed, digest])


@lru_cache(maxsize=1)
def _processor() -> str:
    """The processor's instruction sets, or its name, on which ONNX Runtime's choice of kernels depends."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.lower().startswith(("flags", "features")):
                return line
    return f"{platform.machine()} {platform.processor()}"


@lru_cache(maxsize=1)
def _onnx_ir_hash() -> str:
    """The hash of the file that names the version of onnx_ir: importing the package, or its metadata, takes longer."""
    spec = find_spec("onnx_ir")
    if spec is None or spec.origin is None:
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


@lru_cache(maxsize=1)
def _code_hash() -> str:
    """The hash of the code that rewrites graphs: engines, operators and their rewrites, the artifact's format."""
    own, artifact = Path(__file__).parent, Path(str(limits.__file__)).parent
    operators = artifact.parent / "trt_plugins"
    folders = (own, own.parent, operators, operators / "rewrites", operators / "specs", artifact)
    files = [path for folder in folders for path in folder.glob("*.py")]
    if not files:
        raise FileNotFoundError("the engine's sources are not there as files")
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()


def _entry(graph: DenseGraph | PagedGraph, key: str) -> bytes:
    head: dict[str, Any] = {
        "key": key,
        "weights": [_weight_record(weight) for weight in graph.weights],
        "inputs": sorted(graph.inputs),
        "in_place": sorted(graph.in_place),
    }
    if isinstance(graph, PagedGraph):
        head |= {"parts": sorted(graph.parts), "axes": dict(graph.layouts), "operators": dict(graph.operators)}
    else:
        head["layouts"] = {name: [layout.transposed, layout.width] for name, layout in graph.layouts.items()}
    rest = json.dumps(head).encode() + b"\n" + graph.model
    return hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def _read(path: Path, key: str) -> DenseGraph | PagedGraph | None:
    """The graph of the entry ``path``; None if there is none that is whole and of this ``key``."""
    try:
        checksum, _, rest = read_inside(path.parent, path.name, CACHE_ENTRY_BYTES).partition(b"\n")
        if checksum.decode() != hashlib.sha256(rest).hexdigest():
            return None
        line, _, model = rest.partition(b"\n")
        head = json.loads(line)
        if head["key"] != key:
            return None
        weights = tuple(_weight(record) for record in head["weights"])
        inputs, in_place = frozenset(head["inputs"]), frozenset(head["in_place"])
        os.utime(path)
        if "parts" in head:
            axes = {str(name): tuple(map(int, order)) for name, order in head["axes"].items()}
            operators = {str(name): bool(replayable) for name, replayable in head["operators"].items()}
            return PagedGraph(model, weights, inputs, in_place, frozenset(head["parts"]), axes, operators)
        layouts = {
            str(name): StateLayout(bool(swapped), int(width)) for name, (swapped, width) in head["layouts"].items()
        }
        return DenseGraph(model, weights, inputs, in_place, layouts)
    except (OSError, ArtifactError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _weight_record(weight: GraphWeight) -> list[Any]:
    parts = [[None if tensor is None else _tensor_record(tensor) for tensor in _tensors(part)] for part in weight.parts]
    return [
        weight.name,
        parts,
        weight.joined,
        weight.interleaved,
        weight.shared,
        weight.form,
        weight.block,
        weight.packed,
    ]


def _tensors(part: Part) -> list[StoredTensor | None]:
    """A stored tensor alone, or the four of a quantised matrix."""
    if isinstance(part, StoredTensor):
        return [part]
    return [part.values, part.scales, part.zero_points, part.global_scale]


def _tensor_record(tensor: StoredTensor) -> list[Any]:
    return [tensor.location, tensor.offset, tensor.dtype.value, tensor.shape]


def _weight(record: list[Any]) -> GraphWeight:
    name, parts, joined, interleaved, shared, form, block, packed = record
    rows = None if joined is None else (int(joined[0]), int(joined[1]), int(joined[2]))
    stored = tuple(_part(tensors) for tensors in parts)
    return GraphWeight(str(name), stored, rows, bool(interleaved), bool(shared), str(form), int(block), bool(packed))


def _part(records: list[Any]) -> Part:
    tensors = [None if record is None else _tensor(record) for record in records]
    if len(tensors) == 1 and tensors[0] is not None:
        return tensors[0]
    values, scales, zero_points, global_scale = tensors
    if values is None or scales is None:
        raise ValueError("expected a matrix with scales")
    return QuantizedMatrix(values, scales, zero_points, global_scale)


def _tensor(record: list[Any]) -> StoredTensor:
    location, offset, dtype, shape = record
    return StoredTensor(str(location), int(offset), DType(dtype), tuple(map(int, shape)))
