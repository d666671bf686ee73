"""The engine forms that a check builds, and the artifact of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DENSE, PAGED, BFLOAT16, INT4, FP8_KV, MTP = "dense", "paged", "bfloat16", "int4", "fp8-kv", "mtp"
# Arguments of ``hybridge.export`` by artifact.
EXPORTS: Mapping[str, Mapping[str, Any]] = {
    DENSE: {"dtype": "float16"},
    PAGED: {"dtype": "float16", "layout": "paged"},
    BFLOAT16: {"dtype": "bfloat16", "layout": "paged"},
    INT4: {"dtype": "float16", "layout": "paged", "quantize": "int4"},
    FP8_KV: {"dtype": "bfloat16", "layout": "paged", "kv_dtype": "fp8_e4m3"},
    MTP: {"dtype": "float16", "layout": "paged"},
}
DRAFT_TOKENS = 4
_PLUGINS = {"plugins": "on", "plugin_states": "aliased"}
_DRAFTS = {**_PLUGINS, "speculative_tokens": DRAFT_TOKENS}


@dataclass(frozen=True)
class Form:
    """``options``: of ``hybridge.build_engine``, for the artifact of that name."""

    name: str
    artifact: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def drafts(self) -> int:
        """Draft tokens of a row."""
        return int(self.options.get("speculative_tokens", 0))

    @property
    def drafter(self) -> str:
        """The source of draft tokens: the prediction head of an artifact with one, or n-grams."""
        return "mtp" if self.artifact == MTP else "ngram"


FORMS = {
    form.name: form
    for form in (
        Form("dense-plugins", DENSE, _PLUGINS),
        Form("dense-plugins-separate", DENSE, {"plugins": "on", "plugin_states": "separate"}),
        Form("dense-plugins-two-ops", DENSE, {**_PLUGINS, "plugin_mixers": "separate"}),
        Form("dense-native", DENSE, {"plugins": "off"}),
        Form("paged-plugins", PAGED, _PLUGINS),
        Form("paged-native", PAGED, {"plugins": "off"}),
        Form("paged-snapshot", PAGED, {**_DRAFTS, "draft_states": "snapshot"}),
        Form("paged-replay", PAGED, {**_DRAFTS, "draft_states": "replay"}),
        Form("paged-mtp", MTP, {**_DRAFTS, "draft_states": "snapshot"}),
        Form("paged-bfloat16", BFLOAT16, _PLUGINS),
        Form("paged-int4", INT4, _PLUGINS),
        Form("paged-fp8-kv", FP8_KV, _PLUGINS),
    )
}
