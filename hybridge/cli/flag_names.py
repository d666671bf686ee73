"""Errors of the Python API in the words of the command line: parameters become flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

# The library writes parameters in backquotes, as in Python: `max_seq_len`, `layout="paged"`, `overwrite=True`.
_PARAMETER = re.compile(r"`(\w+)(?:=([^`]*))?`")


def in_flags(sentence: str, own: Mapping[str, str]) -> str:
    """``sentence`` with flags for the parameters in backquotes, and for the one at its start ("seed: ...").

    own: flags of this command by parameter; those of other commands count in backquotes only.
    """
    name, colon, rest = sentence.partition(":")
    if colon and name in own:
        sentence = f"{own[name]}:{rest}"
    if "`" not in sentence:
        return sentence
    return _PARAMETER.sub(lambda match: _flag(match[0], match[1], match[2], own), sentence)


def _flag(text: str, name: str, value: str | None, own: Mapping[str, str]) -> str:
    flag = own.get(name) or _all_flags().get(name)
    if flag is None:
        return text
    if value is None or value in ("True", "False"):
        return flag
    return f"{flag} {value.strip(chr(34) + chr(39))}"


@lru_cache(maxsize=1)
def _all_flags() -> Mapping[str, str]:
    """The flags of export, build-engine, verify and every engine by parameter."""
    from hybridge.artifact.settings import settings_of
    from hybridge.evaluation.options import EvaluateOptions
    from hybridge.exporter.options import ExportOptions
    from hybridge.quantization.options import QuantizeOptions
    from hybridge.runtime.engines.factory import EngineOptions
    from hybridge.trt_plugins.build.options import BuildOptions
    from hybridge.verification.options import VerifyOptions

    kinds = (QuantizeOptions, EvaluateOptions, VerifyOptions, EngineOptions, BuildOptions, ExportOptions)
    return {"prompt_lengths": "--prompt-lengths", **{each.name: each.flag for k in kinds for each in settings_of(k)}}
