"""One ONNX Runtime session over the shared weights."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.session_graph import SessionGraph
from hybridge.runtime.engines.onnxruntime.weights import WeightStore

# Longer than operators without parallel work take, so that threads still wait for the next parallel one.
_SPIN_MICROSECONDS = 1000


def threaded_options(threads: int) -> ort.SessionOptions:
    """Options of a session with its own threads that alternates with other sessions.

    By default, threads spin for some time after a run (about a second on two cores) and take the processor from the
    session that runs next; here they stop when a run ends.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Before the first run they would spin for tens of milliseconds, too, and slow down the rest of the start.
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(_SPIN_MICROSECONDS))
    return options


def create_session(
    graph: SessionGraph,
    weights: WeightStore,
    folder: Path,
    threads: int,
    packs: bool = False,
    plans_memory: bool = False,
    keeps_order: bool = False,
) -> ort.InferenceSession:
    """A CPU session of ``graph`` with ``threads`` threads; EngineError when ONNX Runtime refuses the graph.

    packs: copy every weight into the order in which products with a few rows read it. Stored weights are as fast for
    one token, and for steps so large that packing them in each product costs nothing.
    plans_memory: pays off for shapes that repeat; for prompts of every length it would keep a block for each.
    keeps_order: run nodes in the order of the graph. The default order runs nodes that only outputs need last, and
    keeps their inputs until then.
    """
    options = threaded_options(threads)
    options.enable_mem_pattern = plans_memory
    if keeps_order:
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    # Without packing, MatMulNBits dequantises the whole weight in every run.
    packs = packs or any(weight.block for weight in graph.weights)
    options.add_session_config_entry("session.disable_prepacking", "0" if packs else "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", f"{folder}/")
    if graph.uses_cpu_library:
        register_cpu_library(options)
    # Keep these alive until the session has been created.
    attached = weights.attach(graph.weights, options)
    try:
        return ort.InferenceSession(graph.model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has no common base class
        raise EngineError(f"{folder}: ONNX Runtime {ort.__version__} cannot run this artifact: {error}") from error
    finally:
        attached.clear()


def register_cpu_library(options: ort.SessionOptions) -> None:
    """Let a session use the operators of the library; EngineError without it."""
    library = cpu_library()
    if library.path is None:
        raise EngineError(
            f"expected the library of CPU kernels, found none ({library.reason}): open the artifact again"
        )
    options.register_custom_ops_library(str(library.path))
