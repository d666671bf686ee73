"""Run an exported artifact and its checkpoint side by side and compare them, layer by layer."""

from hybridge.verification.options import VerifyOptions
from hybridge.verification.report import Comparison, VerifyReport
from hybridge.verification.verifier import verify

__all__ = ["Comparison", "VerifyOptions", "VerifyReport", "verify"]
