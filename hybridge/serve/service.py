"""What all routes share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hybridge.serve.api_keys import ApiKeys
from hybridge.serve.metrics import Metrics
from hybridge.serve.model_store import ModelStore
from hybridge.serve.rate_limits import RateLimits
from hybridge.serve.request_log import RequestLog
from hybridge.serve.session_files import SessionFiles
from hybridge.serve.settings import ServeSettings


@dataclass(eq=False)
class Service:
    """``keys``: None where none is needed. ``draining``: new requests are refused. ``started``: seconds since 1970."""

    settings: ServeSettings
    store: ModelStore
    keys: ApiKeys | None
    log: RequestLog
    rate_limits: RateLimits
    sessions: SessionFiles
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False
    started: int = field(default_factory=lambda: int(time.time()))
