"""Optional packages, and the extra that installs each."""

from __future__ import annotations

from importlib.util import find_spec

from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.extras import install_command

EXTRAS = {
    "torch": "export",
    "transformers": "export",
    "onnxscript": "export",
    "safetensors": "export",
    "onnxruntime": "cpu",
    "tensorrt_rtx": "rtx",
    "tensorrt": "tensorrt",
    "matplotlib": "plot",
    "huggingface_hub": "hub",
    "fastapi": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "prometheus_client": "serve",
    "llguidance": "serve",
    "opentelemetry.sdk": "otel",
    "opentelemetry.exporter.otlp.proto.http": "otel",
}


def require(*packages: str) -> None:
    """Raise HybridgeError when one of ``packages`` is not installed; call it before long work that needs them."""
    for package in packages:
        if not _installed(package):
            raise HybridgeError(missing(package))


def missing(package: str) -> str:
    """The message when ``package`` is missing."""
    return f"this command needs the package {package}: {install_command(EXTRAS[package])}"


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False
