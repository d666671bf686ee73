"""Only artifact.untrusted_file opens untrusted files; everything else goes through it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("artifact", "exporter", "runtime", "trt_plugins", "hybridge")
# Calls that read a file by its name: plain functions, methods of any object, and functions of modules.
FUNCTIONS = {"open"}
METHODS = {"open", "read_text", "read_bytes"}
DOTTED = {
    "io.open", "os.open", "np.load", "np.fromfile", "np.memmap", "np.loadtxt", "numpy.load", "numpy.memmap",
    "onnx.load", "onnx.load_model", "onnx.load_external_data_for_model", "ir.load", "onnx_ir.load", "torch.load",
    "torch.export.load", "json.load", "tomllib.load", "shutil.copy", "shutil.copy2", "shutil.copyfile",
    "shutil.copytree", "tokenizers.Tokenizer.from_file", "Tokenizer.from_file", "safe_open", "load_file",
    "mmap.mmap",
}  # fmt: skip
# file: why it may. Files that Hybridge itself has just written, its own sources, and what was opened elsewhere.
ALLOWED = {
    "artifact/untrusted_file.py": "the one place",
    "artifact/source_digest.py": "its own sources",
    "artifact/mapped_file.py": "maps a file that untrusted_file has opened",
    "artifact/temporary_folder.py": "opens folders of its own for a lock",
    "artifact/folder.py": "syncs files that it has written",
    "artifact/written_file.py": "writes",
    "exporter/checkpoint/entries.py": "writes the copy",
    "exporter/checkpoint/torch_file.py": "reads a file that untrusted_file has opened",
    "exporter/weights/conversion.py": "writes; the source is open",
    "exporter/weights/derived.py": "writes",
    "exporter/weights/quantized.py": "writes",
    "exporter/weights/file_copy.py": "writes; the source is open",
    "hybridge/cli/main.py": "standard output and /dev/null",
    "hybridge/new_family/draft.py": "writes",
    "hybridge/verification/head_reference.py": "writes",
    "hybridge/verification/reference_folder.py": "writes",
    "hybridge/transformers_host/bucket_store.py": "the user's own cache",
    "hybridge/quantization/shard.py": "writes",
    "hybridge/quantization/work_folder.py": "writes",
    "hybridge/inspection/onnx_check.py": "writes the view that onnx reads",
    "runtime/engines/onnxruntime/cpu_library.py": "its own sources; a lock in the user's own cache",
    "runtime/engines/onnxruntime/dequantize.py": "memory of no file",
    "runtime/engines/onnxruntime/graph_cache.py": "hashes its own sources",
    "runtime/engines/onnxruntime/available_memory.py": "what the kernel says in /proc and /sys",
    "runtime/engines/onnxruntime/page_moves.py": "what the kernel says in /proc and /sys",
    "runtime/engines/tensorrt/library.py": "maps a file that untrusted_file has opened",
    "trt_plugins/build/child.py": "the log that it has written",
    "trt_plugins/build/describe.py": "writes",
    "trt_plugins/build/mapped_weights.py": "the mappings of its own process",
    "trt_plugins/build/plan_file.py": "writes",
    "trt_plugins/kernels/compiler.py": "its own sources",
    "trt_plugins/kernels/source.py": "its own sources",
    "trt_plugins/kernels/structs.py": "its own sources",
}


def file_reads(source: str) -> list[tuple[int, str]]:
    """(line, call) of every call in ``source`` that opens a file by its name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        plain = isinstance(node.func, ast.Name) and name in FUNCTIONS
        # self.open() and the like are methods of the project; a path's are called on something else.
        method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and not name.startswith("self.")
        if plain or method or name in DOTTED:
            found.append((node.lineno, name))
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_files_are_opened_in_one_place(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {call}: use artifact.untrusted_file"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in ALLOWED
        for line, call in file_reads(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_the_list_of_exceptions_is_needed() -> None:
    unused = [name for name in ALLOWED if not file_reads((ROOT / name).read_text(encoding="utf-8"))]
    assert not unused


@pytest.mark.parametrize(
    "call",
    ["open(p)", "p.open('rb')", "(a / b).read_text()", "Path(p).read_bytes()", "os.open(p, 0)", "np.memmap(p)",
     "onnx.load(p)", "ir.load(p)", "shutil.copyfile(a, b)"],
)  # fmt: skip
def test_each_way_to_open_a_file_is_seen(call: str) -> None:
    assert file_reads(f"def f(a, b, p):\n    return {call}")
    assert not file_reads("read_inside(folder, name, 3)\nself.open()\nopened(p)")
