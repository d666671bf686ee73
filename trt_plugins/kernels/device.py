"""The CUDA context that kernels run in: its GPU's traits and its loaded kernels."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property

from hybridge.trt_plugins.kernels.architectures import architecture
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits
from hybridge.trt_plugins.kernels.counters import CounterPool
from hybridge.trt_plugins.kernels.disk_cache import KernelCache
from hybridge.trt_plugins.kernels.driver import checked, cuda_driver
from hybridge.trt_plugins.kernels.launcher import BoundPlan
from hybridge.trt_plugins.kernels.source import KernelSource

_LARGEST_PORTABLE_CLUSTER = 8
_STATIC_SHARED_BYTES = 48 * 1024


class KernelDevice:
    """Kernels of one CUDA context, compiled for its GPU on first use and kept for the life of the process.

    Kernels and their counters belong to the context that they are loaded in, and run on its streams alone.
    """

    _devices: dict[int, KernelDevice] = {}  # noqa: RUF012 (one per context of the process, by its id)
    _lock = threading.Lock()

    def __init__(self, context: object, cache: KernelCache | None = None) -> None:
        self._context = context
        with self._inside():
            self._device = checked(cuda_driver().cuCtxGetDevice(), "asking for the GPU of a context")
        self._cache = cache or KernelCache()
        self._functions: dict[tuple[KernelSource, int, int], object] = {}
        self._counters = CounterPool(self._zeroed)

    @classmethod
    def current(cls) -> KernelDevice:
        """The device of the calling thread's CUDA context; else GPU 0, whose primary context becomes current."""
        driver = cuda_driver()
        context = checked(driver.cuCtxGetCurrent(), "asking for the current context")
        if not int(context):
            context = _primary_context(0)
            checked(driver.cuCtxSetCurrent(context), "entering the context of GPU 0")
        # An address may be another context's later; the id never is.
        number = int(checked(driver.cuCtxGetId(context), "asking for the id of the current context"))
        with cls._lock:
            device = cls._devices.get(number)
            if device is None:
                device = cls._devices[number] = cls(context)
        return device

    @cached_property
    def traits(self) -> DeviceTraits:
        attribute = cuda_driver().CUdevice_attribute

        def read(name: str) -> int:
            key = getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(checked(cuda_driver().cuDeviceGetAttribute(key, self._device), f"reading {name}"))

        return DeviceTraits(
            capability=(read("COMPUTE_CAPABILITY_MAJOR"), read("COMPUTE_CAPABILITY_MINOR")),
            multiprocessors=read("MULTIPROCESSOR_COUNT"),
            shared_bytes=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            l2_bytes=read("L2_CACHE_SIZE"),
        )

    def bind(self, plan: CallPlan) -> BoundPlan:
        """``plan`` with its kernels loaded, ready to launch on this device."""
        functions = [self._function(launch.source, launch.shared_bytes, launch.cluster) for launch in plan.launches]
        if not plan.counter_bytes:
            return BoundPlan(plan, functions)
        counters = self._counters.take(plan.counter_bytes)
        bound = BoundPlan(plan, functions, counters)
        weakref.finalize(bound, self._counters.release, counters, plan.counter_bytes).atexit = False
        return bound

    def _zeroed(self, nbytes: int) -> int:
        driver = cuda_driver()
        with self._inside():
            address = checked(driver.cuMemAlloc(nbytes), f"allocating {nbytes} bytes of counters")
            checked(driver.cuMemsetD8(address, 0, nbytes), "clearing counters")
            checked(driver.cuCtxSynchronize(), "clearing counters")
        return int(address)

    def _function(self, source: KernelSource, shared_bytes: int, cluster: int) -> object:
        key = (source, shared_bytes, cluster)
        with self._lock:
            if key not in self._functions:
                with self._inside():
                    self._functions[key] = self._load(source, shared_bytes, cluster)
            return self._functions[key]

    def _load(self, source: KernelSource, shared_bytes: int, cluster: int) -> object:
        driver = cuda_driver()
        compiled = self._cache.get(source, architecture(self.traits.capability))
        module = checked(driver.cuModuleLoadData(compiled.cubin), f"loading {source.label}")
        function = checked(driver.cuModuleGetFunction(module, source.entry.encode()), f"finding {source.label}")
        names = driver.CUfunction_attribute
        static = checked(
            driver.cuFuncGetAttribute(names.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function), f"sizing {source.label}"
        )
        if shared_bytes > _STATIC_SHARED_BYTES - int(static):
            name = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(function, name, shared_bytes), f"{source.label}: {shared_bytes} B shared")
        if cluster > _LARGEST_PORTABLE_CLUSTER:
            name = names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            checked(driver.cuFuncSetAttribute(function, name, 1), f"{source.label}: cluster of {cluster}")
        return function

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """The context is current; afterwards the calling thread's own is again."""
        checked(cuda_driver().cuCtxPushCurrent(self._context), "entering a CUDA context")
        try:
            yield
        finally:
            checked(cuda_driver().cuCtxPopCurrent(), "leaving a CUDA context")


@cache
def _primary_context(ordinal: int) -> object:
    driver = cuda_driver()
    device = checked(driver.cuDeviceGet(ordinal), f"opening GPU {ordinal}")
    return checked(driver.cuDevicePrimaryCtxRetain(device), f"making the context of GPU {ordinal}")
