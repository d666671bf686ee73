"""Run an exported artifact and its checkpoint side by side and compare them, layer by layer."""

from hybridge.verify.options import VerifyOptions
from hybridge.verify.report import Comparison, VerifyReport
from hybridge.verify.verifier import verify

__all__ = ["Comparison", "VerifyOptions", "VerifyReport", "verify"]
