"""State that all routes share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hybridge.artifact.path_kind import require_artifact
from hybridge.requirements import require
from hybridge.runtime.engines.factory import check_engine
from hybridge.serve.api_keys import ApiKeys, Client
from hybridge.serve.errors import ApiError
from hybridge.serve.metrics import Metrics
from hybridge.serve.model_store import ModelStore
from hybridge.serve.quotas import DayReservation, Quotas
from hybridge.serve.rate_limits import RateLimits
from hybridge.serve.request_log import RequestLog
from hybridge.serve.session_files import SessionFiles
from hybridge.serve.settings import ModelSettings, ServeSettings
from hybridge.serve.stored_responses import StoredResponses

if TYPE_CHECKING:
    from hybridge.serve.tracing import Tracing


@dataclass(frozen=True)
class Reservation:
    """Tokens that count as used while a request runs: of the day, and of the minute."""

    day: DayReservation
    minute: int


@dataclass(eq=False)
class Service:
    """``keys``: None where none is needed. ``draining``: new requests are refused. ``started``: seconds since 1970.

    streams: responses that are streams of events now. body_bytes: of the bodies of all requests that have not ended.
    on_drain: called when the server begins to drain. local_only: requests have to name this machine as their host.
    """

    settings: ServeSettings
    store: ModelStore
    keys: ApiKeys | None
    log: RequestLog
    rate_limits: RateLimits
    quotas: Quotas
    sessions: SessionFiles
    responses: StoredResponses
    tracing: Tracing | None = None
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False
    local_only: bool = False
    streams: int = 0
    body_bytes: int = 0
    on_drain: set[Callable[[], None]] = field(default_factory=set)
    started: int = field(default_factory=lambda: int(time.time()))

    def check_limits(self, client: Client) -> None:
        """Count a request of ``client``; ApiError 429 when it is beyond a limit."""
        self.quotas.check(client)
        self.rate_limits.take_request(client.name)

    def reserve_tokens(self, client: Client, most: int) -> Reservation:
        """Count the most tokens that a request can use; ApiError 429 when that is beyond a limit of ``client``."""
        day = self.quotas.reserve(client, most)
        try:
            return Reservation(day, self.rate_limits.reserve_tokens(client.name, most))
        except ApiError:
            self.quotas.settle(client, day, 0)
            raise

    def use_tokens(self, client: Client, reservation: Reservation | None, count: int) -> None:
        """Count the tokens that ``client`` used in prompts and answers, and end the reservation."""
        day, minute = (None, 0) if reservation is None else (reservation.day, reservation.minute)
        self.quotas.settle(client, day, count)
        self.rate_limits.settle_tokens(client.name, minute, count)


def new_service(
    settings: ServeSettings, models: Sequence[ModelSettings], keys: ApiKeys | None, log: RequestLog | None = None
) -> Service:
    """The service of ``models``, none of them loaded; HybridgeError for a folder that is no artifact, or when the
    packages for traces are missing."""
    for model in models:
        check_engine(model.engine)
        require_artifact(model.path)
    log = log or RequestLog(settings.log_prompts)
    store = ModelStore(
        models,
        settings.models_memory_bytes,
        settings.idle_timeout,
        lambda name, error: log.error("not loaded", error, model=name),
    )
    folder = None if settings.session_folder is None else Path(settings.session_folder)
    rates = RateLimits(settings.requests_per_minute, settings.tokens_per_minute)
    quotas, responses = Quotas(settings.tokens_per_day), StoredResponses(settings.stored_responses_bytes)
    tracing = None if settings.otel_endpoint is None else _tracing(settings.otel_endpoint, log)
    return Service(settings, store, keys, log, rates, quotas, SessionFiles(folder), responses, tracing)


def _tracing(endpoint: str, log: RequestLog) -> Tracing:
    require("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    from hybridge.serve.tracing import Tracing

    return Tracing(endpoint, log)
