"""The toy model as a TensorRT stand-in on a real GPU: contexts launch CUDA kernels on the addresses bound to them.

Everything of the engine but TensorRT itself is real: memory, stream, copies, events, graphs. States are integers, so
that a stale buffer, a wrong turn or a lost step changes the logits of ``toy_logits``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.engine_record import EngineRecord, PluginsRecord, ProfileRecord
from hybridge.artifact.names import conv_state, past_key, past_value, present, recurrent_state
from hybridge.runtime.engines.tensorrt import TensorRTEngine
from hybridge.runtime.engines.tensorrt.cuda_memory import CudaMemory
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine
from tests.runtime.tensorrt.stand_in import SCRATCH_BYTES, FakeEngine

# Constants and formulas are those of tests/runtime/toy_engine.py.
SOURCE = """
typedef long long i64;
extern "C" __global__ void begin(i64* mix) { mix[blockIdx.x] = 0; }

extern "C" __global__ void attend(const i64* ids, const int* fresh, const int* past, float* key, float* value,
                                  i64* mix, int tokens, int max_seq, int layer) {
    int row = blockIdx.x, end = past[row] + fresh[row];
    key += (i64)row * max_seq * 2;
    value += (i64)row * max_seq * 2;
    for (int t = 0; t < fresh[row]; t++) {
        i64 token = ids[row * tokens + t], position = past[row] + t;
        for (int d = 0; d < 2; d++) {
            key[2 * position + d] = (float)((token * 13 + position * 5 + layer) % 1009);
            value[2 * position + d] = (float)token;
        }
    }
    for (int p = 0; p < end; p++) mix[row] += (p + 1) * ((i64)key[2 * p + 1] + 3 * (i64)value[2 * p + 1]);
}

extern "C" __global__ void recur(const i64* ids, const int* fresh, const float* conv_in, float* conv_out,
                                 const float* state_in, float* state_out, i64* mix, int tokens, int layer) {
    int row = blockIdx.x;
    i64 c[3], s = (i64)state_in[2 * row], n = (i64)state_in[2 * row + 1];
    for (int i = 0; i < 3; i++) c[i] = (i64)conv_in[3 * row + i];
    for (int t = 0; t < fresh[row]; t++) {
        i64 token = ids[row * tokens + t];
        c[0] = c[1]; c[1] = c[2]; c[2] = token + 1;
        s = (s * 31 + token * 7 + layer + 1) % 9973; n++;
    }
    for (int i = 0; i < 3; i++) { conv_out[3 * row + i] = (float)c[i]; mix[row] += (i + 1) * c[i]; }
    state_out[2 * row] = (float)s; state_out[2 * row + 1] = (float)n;
    mix[row] += 17 * s + 5 * n;
}

extern "C" __global__ void finish(const i64* mix, float* logits, int vocab) {
    for (i64 id = threadIdx.x; id < vocab; id += blockDim.x)
        logits[blockIdx.x * vocab + id] = (float)((double)((mix[blockIdx.x] + id * id * 31 + id * 7) % 1009) / 200.0);
}
"""
KERNELS = ("begin", "attend", "recur", "finish")
DataType = Enum("DataType", ["FLOAT", "INT64", "INT32"])
TRT = SimpleNamespace(
    DataType=DataType,
    TensorLocation=Enum("TensorLocation", ["DEVICE", "HOST"]),
    TensorIOMode=Enum("TensorIOMode", ["INPUT", "OUTPUT"]),
    Dims=tuple,
)


class ToyLibrary:
    """Takes the place of ``RuntimeLibrary``."""

    trt = TRT

    def __init__(self, config: RuntimeConfig, record: EngineRecord) -> None:
        from cuda.core import Device, Program, ProgramOptions

        self._config, self._record = config, record
        options = ProgramOptions(arch=f"sm_{Device().arch}", std="c++17")
        code = Program(SOURCE, "c++", options).compile("cubin")
        self._kernels = {name: code.get_kernel(name) for name in KERNELS}
        self.contexts: list[ToyContext] = []
        self.closed = False

    def load(self, path: Path) -> Any:
        return FakeEngine(SimpleNamespace(trt=TRT, record=self._record, changes={}), None)  # type: ignore[arg-type]

    def create_context(self, engine: Any, fixed_shapes: bool) -> ToyContext:
        self.contexts.append(ToyContext(self._config, self._kernels))
        return self.contexts[-1]

    def demand(self, call: Callable[[], Any], doing: str) -> None:
        assert call(), doing

    def close(self) -> None:
        self.closed = True


class ToyContext:
    """One execution context."""

    def __init__(self, config: RuntimeConfig, kernels: Mapping[str, Any]) -> None:
        self._config, self._kernels = config, kernels
        self._addresses: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._scratch = 0
        self.enqueues = 0

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= SCRATCH_BYTES
        self._scratch = memory

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = shape
        return True

    def infer_shapes(self) -> list[str]:
        return []

    def execute_async_v3(self, stream_handle: int) -> bool:
        from cuda.core import LaunchConfig, Stream, launch

        self.enqueues += 1
        batch, tokens = self._shapes["input_ids"]
        stream = Stream.from_handle(stream_handle)

        def run(name: str, *arguments: Any, threads: int = 1) -> None:
            launch(stream, LaunchConfig(grid=batch, block=threads), self._kernels[name], *arguments)

        def at(*names: str) -> list[int]:
            return [self._addresses[name] for name in names]

        mix, ids, fresh, past = self._scratch, *at("input_ids", "context_lengths", "past_lengths")
        run("begin", mix)
        for k in range(len(self._config.kv_layers)):
            key, value = past_key(k), past_value(k)
            assert at(key, value) == at(present(key), present(value))
            sizes = (np.int32(tokens), np.int32(self._shapes[key][2]), np.int32(k))
            run("attend", ids, fresh, past, *at(key, value), mix, *sizes)
        for r in range(len(self._config.recurrent_layers)):
            conv, state = conv_state(r), recurrent_state(r)
            states = at(conv, present(conv), state, present(state))
            run("recur", ids, fresh, *states, mix, np.int32(tokens), np.int32(r))
        run("finish", mix, self._addresses["logits"], np.int32(self._config.vocab_size), threads=64)
        return True


def toy_record(config: RuntimeConfig, plan: Path, in_place: bool) -> EngineRecord:
    """engine.json of the toy; ``in_place``: recurrent states share their outputs' memory too."""
    sizes = {"max_seq": config.max_seq_len}
    past = {str(b.replaced_by): b.name for b in config.bindings.states if in_place or "max_seq" in b.shape}
    bindings = []
    for mode, side in (("input", config.bindings.inputs), ("output", config.bindings.outputs)):
        for b in side:
            shape = [sizes.get(str(size), size) for size in b.shape]
            entry = {"name": b.name, "mode": mode, "dtype": b.dtype.value, "shape": shape}
            entry |= {"replaced_by": b.replaced_by} if b.replaced_by else {}
            bindings.append(entry | ({"aliases": past[b.name]} if b.name in past else {}))
    profiles = []
    for name, most in (("prefill", config.max_seq_len), ("decode", 1)):
        ends = ((1, 1), (1, 1), (config.max_batch_size, most))
        shapes = {b.name: [list(b.resolve(batch=r, seq=t, **sizes)) for r, t in ends] for b in config.bindings.inputs}
        profiles.append(ProfileRecord(name, shapes))
    return EngineRecord(
        engine=plan.name,
        nbytes=plan.stat().st_size,
        sha256="0",
        library="tensorrt_rtx",
        library_version="1",
        preset="toy",
        compute_capabilities=["9.0"],
        plugins=PluginsRecord("trt_edgellm", "1", {}, False, ""),
        max_batch_size=config.max_batch_size,
        max_seq_len=config.max_seq_len,
        profiles=profiles,
        bindings=bindings,
        layers={},
        model_sha256="0",
        build_seconds=0.0,
    )


def open_toy(config: RuntimeConfig, folder: Path, in_place: bool) -> tuple[TensorRTEngine, ToyLibrary]:
    """The engine of the toy on the GPU, and its stand-in of the library."""
    plan = folder / "model.engine"
    plan.write_bytes(b"toy")
    record = toy_record(config, plan, in_place)
    memory = CudaMemory()
    library: Any = ToyLibrary(config, record)
    return TensorRTEngine(config, BuiltEngine(folder, record, "build it"), memory, library), library
