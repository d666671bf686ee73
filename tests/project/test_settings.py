"""Functions of the public API take the settings of their dataclasses, with the same defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from hybridge import api
from hybridge.artifact.settings import settings_of
from hybridge.evaluation.options import EvaluateOptions
from hybridge.exporter.options import AUTO, ExportOptions
from hybridge.quantization.options import QuantizeOptions
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.verification.options import VerifyOptions

# Types by name in Python, as on the command line.
NAMED = {"dtype": AUTO, "state_dtype": "float32"}


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (api.export, ExportOptions),
        (api.build_engine, BuildOptions),
        (api.verify, VerifyOptions),
        (api.evaluate, EvaluateOptions),
        (api.quantize, QuantizeOptions),
    ],
)
def test_parameters_are_settings(function: Callable[..., Any], kind: type) -> None:
    parameters = inspect.signature(function).parameters
    defaults = {each.name: NAMED.get(each.name, each.default) for each in settings_of(kind)}
    assert defaults and defaults == {name: parameters[name].default for name in defaults}
