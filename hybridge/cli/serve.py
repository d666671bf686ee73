"""hybridge serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hybridge.artifact.errors import SettingError
from hybridge.cli.engine_option import ENGINE_NAME
from hybridge.cli.generation_options import DRAFT
from hybridge.cli.options import ARTIFACT
from hybridge.cli.parser import PATH, Command, Option, Switch, given, options_of
from hybridge.runtime.engines.factory import AUTO, EngineOptions
from hybridge.serve.settings import ModelSettings, ServeSettings


def _run(
    out: Path | None,
    model: tuple[str, ...],
    config: Path | None,
    api_key_file: Path | None,
    engine: str | None,
    engine_folder: str | None,
    threads: int | None,
    embeddings: bool,
    draft: str | None,
    draft_tokens: int | None,
    **settings: Any,
) -> None:
    from hybridge.requirements import require
    from hybridge.serve.config_file import read_config_file

    require("fastapi", "uvicorn", "httptools", "prometheus_client")
    values, models = ({}, []) if config is None else read_config_file(config)
    chosen: dict[str, Any] = {"engine": engine or AUTO, "engine_folder": engine_folder, "threads": threads}
    chosen |= {"embeddings": embeddings, "draft": draft, "draft_tokens": draft_tokens}
    if out is not None:
        models.insert(0, ModelSettings(out.resolve().name, out, preload=True, **chosen))
    for text in model:
        name, equals, folder = text.partition("=")
        if not equals or not folder:
            raise SettingError(f"model: expected NAME=OUT, found {text!r}")
        models.append(ModelSettings(name, Path(folder), **chosen))
    if not models:
        raise click.BadParameter("expected OUT, or a model by --model or --config, found none", param_hint="OUT")
    from hybridge.serve.api_keys import ApiKeys
    from hybridge.serve.server import HttpServer

    keys = None if api_key_file is None else ApiKeys.from_file(api_key_file)
    HttpServer(ServeSettings(**{**values, **given(settings)}), models, keys).run(owns_process=True)


ARTIFACT_TO_SERVE = type(ARTIFACT)("out", "Folder written by hybridge export; loaded at the start.")
ARTIFACT_TO_SERVE.required = False
COMMAND = Command(
    "serve",
    "Serve artifacts over HTTP, with OpenAI's API, until SIGTERM or Ctrl-C.",
    _run,
    ARTIFACT_TO_SERVE,
    Option(
        "--model",
        help="Additional artifact, loaded when a request names it (repeatable).",
        metavar="NAME=OUT",
        multiple=True,
    ),
    Option("--config", help="TOML file with these settings and models.", type=PATH, metavar="FILE"),
    Option(
        "--api-key-file",
        help="File with a line KEY, NAME KEY or NAME KEY TOKENS_PER_DAY for each client; without it, all are accepted.",
        type=PATH,
        metavar="FILE",
    ),
    Switch("--embeddings", help="Also serve /v1/embeddings (not for dense artifacts)."),
    *options_of(ServeSettings),
    ENGINE_NAME,
    *options_of(EngineOptions, "threads", "engine_folder"),
    *DRAFT,
)
