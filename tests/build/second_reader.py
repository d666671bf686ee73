"""A program: reads a model with TensorRT-RTX's execution provider of ONNX Runtime, in a session that only compiles.

    python second_reader.py MODEL SETTINGS

SETTINGS: JSON with ``axes`` (sizes of symbolic axes by name) and ``provider`` (its options). Prints as JSON the
operators of the nodes that each execution provider has taken. ``onnxruntime_ep_nv_tensorrt_rtx`` must be importable.

ONNX Runtime's Python interface cannot set up the environment that a device without hardware needs, so that this uses
the C interface.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

NAME, TARGET = b"NvTensorRTRTXExecutionProvider", b"sm89"
# Positions of functions in OrtApi (onnxruntime_c_api.h), to which later versions only append.
API_VERSION = 24
POSITIONS = {
    "GetErrorMessage": 2,
    "CreateSession": 7,
    "CreateSessionOptions": 10,
    "SetSessionGraphOptimizationLevel": 23,
    "AddFreeDimensionOverrideByName": 124,
    "AddSessionConfigEntry": 130,
    "CreateKeyValuePairs": 295,
    "AddKeyValuePair": 296,
    "RegisterExecutionProviderLibrary": 301,
    "GetEpDevices": 303,
    "SessionOptionsAppendExecutionProvider_V2": 304,
    "EpDevice_EpName": 312,
    "CreateEnvWithOptions": 406,
    "Session_GetEpGraphAssignmentInfo": 407,
    "EpAssignedSubgraph_GetEpName": 408,
    "EpAssignedSubgraph_GetNodes": 409,
    "EpAssignedNode_GetOperatorType": 412,
}
# The provider has a device without hardware only in a sandboxed process of Windows, which this flag (and the guard
# before it) says.
SANDBOXED = (
    "_ZGVZN10trt_rtx_ep22IsWin32kLockdownActiveEvE6active",
    "_ZZN10trt_rtx_ep22IsWin32kLockdownActiveEvE6active",
)
EXPORTED = "CreateEpFactories"


class EnvOptions(ctypes.Structure):
    """OrtEnvCreationOptions."""

    _fields_ = (
        ("version", c_uint32),
        ("log_level", c_int),
        ("log_id", c_char_p),
        ("log", c_void_p),
        ("log_parameter", c_void_p),
        ("threads", c_void_p),
        ("entries", c_void_p),
    )


class ApiBase(ctypes.Structure):
    """OrtApiBase."""

    _fields_ = (("get_api", ctypes.CFUNCTYPE(c_void_p, c_uint32)), ("get_version", c_void_p))


class Api:
    """OrtApi."""

    def __init__(self, library: Path) -> None:
        base = ctypes.CDLL(str(library)).OrtGetApiBase
        base.restype = POINTER(ApiBase)
        self._table = ctypes.cast(base().contents.get_api(API_VERSION), POINTER(c_void_p))

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(self._table[POSITIONS[name]])

    def call(self, name: str, types: tuple[Any, ...], *arguments: Any) -> None:
        """A function that gives a status."""
        status = self.function(name, c_void_p, *types)(*arguments)
        if status:
            raise SystemExit(f"{name}: {self.function('GetErrorMessage', c_char_p, c_void_p)(status).decode()}")

    def made(self, name: str, types: tuple[Any, ...], *arguments: Any) -> c_void_p:
        """What such a function writes to its last argument."""
        found = c_void_p()
        self.call(name, (*types, c_void_p), *arguments, byref(found))
        return found

    def listed(self, name: str, owner: c_void_p) -> list[int]:
        """Pointers that a function of ``owner`` gives with their number."""
        found, count = c_void_p(), c_size_t()
        self.call(name, (c_void_p,) * 3, owner, byref(found), byref(count))
        return list(ctypes.cast(found, POINTER(c_void_p))[: count.value])


def main() -> None:
    import onnxruntime
    import onnxruntime_ep_nv_tensorrt_rtx as provider

    model, settings = sys.argv[1], json.loads(sys.argv[2])
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    api = Api(library)
    offer_device(Path(provider.get_library_path()))
    env = environment(api, provider.get_library_path())
    device_name = api.function("EpDevice_EpName", c_char_p, c_void_p)
    (device,) = (each for each in api.listed("GetEpDevices", env) if device_name(each) == NAME)
    options = api.made("CreateSessionOptions", ())
    api.call("SetSessionGraphOptimizationLevel", (c_void_p, c_int), options, 0)
    for entry in (b"session.compile_only", b"session.record_ep_graph_assignment_info"):
        api.call("AddSessionConfigEntry", (c_void_p, c_char_p, c_char_p), options, entry, b"1")
    for axis, size in settings["axes"].items():
        api.call("AddFreeDimensionOverrideByName", (c_void_p, c_char_p, c_int64), options, axis.encode(), size)
    given = {"nv_target_sm": TARGET.decode(), **settings["provider"]}
    keys, values = ((c_char_p * len(given))(*map(str.encode, part)) for part in (given, given.values()))
    types = (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_size_t)
    devices = (c_void_p * 1)(device)
    api.call("SessionOptionsAppendExecutionProvider_V2", types, options, env, devices, 1, keys, values, len(given))
    session = api.made("CreateSession", (c_void_p, c_char_p, c_void_p), env, model.encode(), options)
    print(json.dumps(assignment(api, session)))


def environment(api: Api, library: str) -> c_void_p:
    """OrtEnv with the provider in the file ``library``, which may make a device."""
    entries = c_void_p()
    api.function("CreateKeyValuePairs", None, c_void_p)(byref(entries))
    for key, value in ((b"allow_virtual_devices", b"1"), (b"ep_factory.%s.nv_target_sm" % NAME, TARGET)):
        api.function("AddKeyValuePair", None, c_void_p, c_char_p, c_char_p)(entries, key, value)
    fatal_errors = 4
    settings = EnvOptions(API_VERSION, fatal_errors, b"reader", None, None, None, entries)
    env = api.made("CreateEnvWithOptions", (c_void_p,), byref(settings))
    types = (c_void_p, c_char_p, c_char_p)
    api.call("RegisterExecutionProviderLibrary", types, env, NAME, library.encode())
    return env


def offer_device(library: Path) -> None:
    """Set SANDBOXED in the provider's library."""
    lines = subprocess.run(["nm", library], check=True, capture_output=True, text=True).stdout.splitlines()
    places = {name: int(place, 16) for *place_, _, name in map(str.split, lines) for place in place_}
    exported = ctypes.cast(getattr(ctypes.CDLL(str(library)), EXPORTED), c_void_p).value
    assert exported is not None
    for name in SANDBOXED:
        ctypes.c_ubyte.from_address(exported - places[EXPORTED] + places[name]).value = 1


def assignment(api: Api, session: c_void_p) -> dict[str, list[str]]:
    """The operators of the nodes by execution provider."""
    found: dict[str, list[str]] = {}
    for part in api.listed("Session_GetEpGraphAssignmentInfo", session):
        name = api.made("EpAssignedSubgraph_GetEpName", (c_void_p,), part)
        operators = found.setdefault(text(name), [])
        for node in api.listed("EpAssignedSubgraph_GetNodes", c_void_p(part)):
            operators.append(text(api.made("EpAssignedNode_GetOperatorType", (c_void_p,), node)))
    return found


def text(pointer: c_void_p) -> str:
    return ctypes.string_at(pointer).decode()


if __name__ == "__main__":
    main()
