"""Settings of the server and of each model that it serves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hybridge.artifact.errors import SettingError
from hybridge.artifact.limits import CONVERSATION_BYTES
from hybridge.artifact.settings import check_settings, setting
from hybridge.runtime.engines.factory import AUTO, ENGINE_NAMES

_LIMITS, _OPERATION = "Limits", "Operation"
REFUSE, PLACEHOLDER = "refuse", "placeholder"


@dataclass(frozen=True)
class ServeSettings:
    """Address, limits and logging of the server. Times are in seconds.

    All but the address may also be given in a TOML file (``serve_config``).
    """

    host: str = setting("127.0.0.1", "Address to listen on.", metavar="ADDRESS")
    port: int = setting(8000, "Port to listen on; 0 picks a free one.", metavar="N", least=0, most=65535)
    max_waiting: int = setting(
        128, "Requests of a model that may wait for a free row; others get status 429.", metavar="N", least=0,
        group=_LIMITS,
    )  # fmt: skip
    max_body_bytes: int = setting(
        CONVERSATION_BYTES, "Maximum size of a request body.", metavar="BYTES", least=1, group=_LIMITS
    )  # fmt: skip
    max_prompt_tokens: int | None = setting(
        None, "Longest prompt.", metavar="N", least=1, shown_default="the model's", group=_LIMITS
    )  # fmt: skip
    max_new_tokens: int | None = setting(
        None, "Maximum answer length; larger values are capped.", metavar="N", least=1, shown_default="the model's",
        group=_LIMITS,
    )  # fmt: skip
    requests_per_minute: int | None = setting(
        None, "Requests per API key and minute.", metavar="N", least=1, shown_default="unlimited", group=_LIMITS
    )  # fmt: skip
    tokens_per_minute: int | None = setting(
        None, "Prompt and answer tokens per API key and minute.", metavar="N", least=1, shown_default="unlimited",
        group=_LIMITS,
    )  # fmt: skip
    tokens_per_day: int | None = setting(
        None, "Prompt and answer tokens per API key and day (UTC).", metavar="N", least=1, shown_default="unlimited",
        group=_LIMITS,
    )  # fmt: skip
    receive_timeout: int = setting(
        30, "Seconds within which a request must arrive.", metavar="S", least=1, group=_LIMITS
    )  # fmt: skip
    request_timeout: int = setting(600, "Seconds after which a request ends.", metavar="S", least=1, group=_LIMITS)
    send_timeout: int = setting(
        30, "Seconds that a client may stop reading its stream.", metavar="S", least=1, group=_LIMITS
    )  # fmt: skip
    drain_timeout: int = setting(
        30, "Seconds for running requests to finish after SIGTERM.", metavar="S", least=0, group=_OPERATION
    )  # fmt: skip
    idle_timeout: int = setting(
        600, "Seconds after which an unused model that was loaded on demand is unloaded.", metavar="S", least=1,
        group=_OPERATION,
    )  # fmt: skip
    models_memory_bytes: int | None = setting(
        None, "Memory limit of loaded models.", metavar="BYTES", least=1, shown_default="unlimited", group=_OPERATION
    )  # fmt: skip
    session_folder: str | None = setting(
        None, "Folder of saved sessions.", metavar="DIR", shown_default="none: no sessions", group=_OPERATION
    )
    stored_responses_bytes: int = setting(
        1 << 26, "Memory of stored responses.", metavar="BYTES", least=0, group=_OPERATION
    )  # fmt: skip
    otel_endpoint: str | None = setting(
        None, "OpenTelemetry collector (OTLP over HTTP) for traces.", metavar="URL", shown_default="none",
        group=_OPERATION,
    )  # fmt: skip
    log_prompts: bool = setting(False, "Write prompts and answers to the log.", group=_OPERATION)
    images: str = setting(
        REFUSE, "Images in messages: refuse, or placeholder (a text instead).", metavar="WAY",
        choices=(REFUSE, PLACEHOLDER), group=_OPERATION,
    )  # fmt: skip
    control_tokens: bool = setting(
        False, "Treat special tokens in messages as control tokens.", group=_OPERATION
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_settings(self)
        if "\0" in (self.session_folder or ""):
            raise SettingError(f"session_folder: expected a path, found {self.session_folder!r}")
        if self.otel_endpoint is not None and not re.match(r"https?://[^/]", self.otel_endpoint):
            raise SettingError(
                f"otel_endpoint: expected a URL such as http://localhost:4318, found {self.otel_endpoint!r}"
            )


@dataclass(frozen=True)
class ModelSettings:
    """One artifact by name. ``preload``: it is loaded at the start and stays loaded.

    memory_bytes: size of its pools (``ServingSettings``). embeddings: it serves them, too. draft: source of draft
    tokens, "ngram", "mtp" or the folder of a draft model. The other settings are those of ``LLM``.
    """

    name: str
    path: Path
    preload: bool = False
    engine: str = setting(AUTO, choices=ENGINE_NAMES)
    threads: int | None = setting(None, least=1)
    engine_folder: str | None = setting(None)
    max_batch_size: int | None = setting(None, least=1)
    max_seq_len: int | None = setting(None, least=1)
    memory_bytes: int | None = setting(None, least=1)
    host_bytes: int = setting(0, least=0)
    embeddings: bool = setting(False)
    draft: str | None = setting(None)
    draft_tokens: int | None = setting(None, least=1)
    ring_rows: int | None = setting(None, least=1)

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.name or len(self.name) > 256 or not self.name.isprintable():
            raise SettingError(f"model: expected a name of 1 to 256 printable characters, found {self.name!r}")
