"""A field that config.json lacks has the default of transformers, or is required by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoConfig

from hybridge.artifact.errors import HybridgeError
from hybridge.exporter.families.registry import decoder_config
from tests.support.tiny_models import BASE_CONFIGS
from tests.support.versions import skip_without_family

FAMILIES = sorted(BASE_CONFIGS)


def saved_config(model_type: str, fields: dict[str, Any]) -> dict[str, Any]:
    """What transformers writes to config.json for ``fields``, every default spelled out."""
    skip_without_family(model_type)
    return AutoConfig.for_model(model_type, **fields).to_dict()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_short_config_means_the_same_as_the_saved_one(model_type: str) -> None:
    fields = BASE_CONFIGS[model_type]
    assert decoder_config({"model_type": model_type, **fields}) == decoder_config(saved_config(model_type, fields))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_absent_field_has_the_default_of_transformers_or_is_named(model_type: str) -> None:
    complete = saved_config(model_type, BASE_CONFIGS[model_type])
    defaulted = 0
    for field in sorted(set(complete) - {"model_type"}):
        rest = {k: v for k, v in complete.items() if k != field}
        try:
            ours = decoder_config(rest)
        except HybridgeError as error:
            assert field in str(error), f"{field}: {error}"
            continue
        arguments = {k: v for k, v in rest.items() if k not in ("model_type", "transformers_version")}
        theirs = decoder_config(saved_config(model_type, arguments))
        # Nothing is computed from the trained length; an absent one stays unknown.
        assert ours == replace(theirs, max_position_embeddings=ours.max_position_embeddings), field
        defaulted += 1
    assert defaulted > 10
