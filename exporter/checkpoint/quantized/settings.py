"""The settings of a quantization_config: each is read, or known to have no effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.json_fields import Fields

WHERE = "config.json: quantization_config"


def settings_of(config: Mapping[str, Any], unused: Iterable[str], where: str = WHERE) -> Fields:
    """The fields of ``config``, named by ``where`` in errors; those in ``unused`` may have any value.

    The reader of a format reads the others and then calls ``refuse_unknown``.
    """
    fields = Fields(config, where, CheckpointError)
    for name in unused:
        fields.raw(name, None)
    return fields
