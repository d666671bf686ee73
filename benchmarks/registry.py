"""Every benchmark: where it is, what it measures and against what."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from benchmarks.runner import Benchmark


@dataclass(frozen=True)
class Entry:
    """``place``: module and function below this package, imported only when it runs. page: whether it is on
    docs/reference/benchmarks.md."""

    place: str
    measures: str
    peer: str = "-"
    page: bool = False

    def load(self, name: str) -> Benchmark:
        """The benchmark, imported."""
        module, function = self.place.split(":")
        return Benchmark(name, getattr(import_module(f"benchmarks.{module}"), function))


PEER_GPU = "transformers on the same GPU"
ENTRIES = {
    "export": Entry("export:run", "time and peak memory of exporting a random 1.7 GB checkpoint", page=True),
    "export_sizes": Entry("export:run_sizes", "the same for sparse checkpoints of 0.6 to 550 B parameters"),
    "start_up": Entry("start_up:run", "a process of hybridge run: processor and wall time", page=True),
    "cpu_decode": Entry("cpu_decode:run", "decoding and prefill on the CPU, tokens/s", "transformers", page=True),
    "quantized_decode": Entry("quantized_decode:run", "4, 8 and 16 bits on the CPU; --llama-cpp", "llama.cpp"),
    "hybrid_decode": Entry(
        "hybrid_decode:run", "seven models in float32 on the CPU; --llama-cpp", "transformers, llama.cpp"
    ),
    "scheduler": Entry("scheduler:run", "host time of a decode step of 64 sequences", page=True),
    "serving": Entry("serving:run", "continuous batching on the CPU: tokens/s, latencies", "dense engine", page=True),
    "serving_torch": Entry("serving:run_torch", "the same for a 2.65 B model on a GPU", "dense engine"),
    "http_serving": Entry("http_serving:run", "streams of the HTTP server on the CPU", "AsyncLLM, llama.cpp"),
    "grammar_masks": Entry(
        "grammar_masks:run", "steps of 64 rows whose answers follow a grammar", "steps without masks"
    ),
    "grammar_masks_torch": Entry(
        "grammar_masks_torch:run", "the same for a 2.65 B model on a GPU", "steps without masks"
    ),
    "torch_engine": Entry("torch_engine:run", "decoding and prompts of a 2.65 B model on a GPU", PEER_GPU),
    "torch_engine_int4": Entry("torch_engine:run_int4", "the same with matrices in int4", "bfloat16, same run"),
    "torch_engine_experts": Entry("torch_experts:run", "the same for a Qwen3-Next of 12 layers", PEER_GPU),
    "long_context": Entry("long_context:run", "prompts and decode steps at 128k tokens on a GPU", PEER_GPU),
    "state_rings": Entry(
        "state_rings:run", "steps of 64 rows whose states have rings, on a GPU", "plain states, same run"
    ),
    "sampled_steps": Entry("sampled_steps:run", "steps of 64 rows that sample, on a GPU", "greedy steps, same run"),
    "accelerated_generate": Entry(
        "accelerated_generate:run", "generate() of transformers with engines of hybridge.accelerate", "transformers"
    ),
    "speculation": Entry("speculation:run", "prompt lookup on the CPU", "plain decoding"),
    "speculation_torch": Entry("speculation_torch:run", "draft tokens on a GPU, right by chance", "plain decoding"),
    "kernels": Entry("kernels.run:run", "CUDA kernels, on a GPU; --groups, --case, --check", "public kernels, torch"),
    "prefix_cache": Entry("prefix_cache:run", "prompt tokens found in the prefix cache", "offline optimum, LRU"),
}
ON_PAGE = tuple(name for name, entry in ENTRIES.items() if entry.page)


def benchmark(name: str) -> Benchmark:
    """The benchmark ``name``. KeyError when there is none."""
    return ENTRIES[name].load(name)
