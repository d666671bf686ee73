"""The network that TensorRT's parser makes of an artifact's prediction head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hybridge.artifact.config import MTP_CONFIG_FILE, MTP_MODEL_FILE
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.tensorrt_network.paged_engine import NativeNetworkPagedEngine, NetworkPagedEngine


@dataclass(frozen=True, eq=False, kw_only=True)
class HiddenRowInputs(PackedInputs):
    """A step of a head's network.

    hidden_rows [n, hidden] float32: hidden states. hidden_slots [tokens] int64: the row of each token. is_own [tokens]
    int32: as in ``HeadInputs``.
    """

    hidden_rows: np.ndarray
    hidden_slots: np.ndarray
    is_own: np.ndarray


class NetworkMtpHead(NetworkPagedEngine):
    """Computes the network of the head of the artifact in a folder, with plugins."""

    _config_file: ClassVar[str] = MTP_CONFIG_FILE
    _model_file: ClassVar[str] = MTP_MODEL_FILE


class NativeNetworkMtpHead(NativeNetworkPagedEngine):
    """The same network without plugins."""

    _config_file: ClassVar[str] = MTP_CONFIG_FILE
    _model_file: ClassVar[str] = MTP_MODEL_FILE
