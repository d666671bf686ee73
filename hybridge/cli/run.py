"""hybridge run."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from hybridge.cli import generation_options as given
from hybridge.cli.drafts import draft_settings, draft_summary
from hybridge.cli.failures import AnswerInterrupted
from hybridge.cli.flag_names import flags_of, naming_flags
from hybridge.cli.generation_report import generation_document, generation_summary, interruption_summary
from hybridge.cli.options import Artifact, Check, Engine, EngineFolder, Json, Quiet, Threads, integers
from hybridge.cli.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from hybridge.runtime.generation import Generation
    from hybridge.runtime.llm import LLM
    from hybridge.runtime.sampling import SamplingParams
    from hybridge.runtime.serving.settings import ServingSettings

FLAGS = {
    **flags_of("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_new_tokens", "stop"),
    **flags_of("engine", "engine_folder", "threads", "system"),
    "speculation": "--draft",
}


def run(
    out: Artifact,
    prompt: given.Prompt = None,
    prompt_file: given.PromptFile = None,
    chat: given.Chat = None,
    system: given.System = None,
    prompt_ids: given.PromptIds = None,
    max_new_tokens: given.MaxNewTokens = 256,
    sampling: given.Recommended = "greedy",
    temperature: given.Temperature = None,
    top_k: given.TopK = None,
    top_p: given.TopP = None,
    min_p: given.MinP = None,
    repetition_penalty: given.RepetitionPenalty = None,
    seed: given.Seed = None,
    stop: given.Stop = None,
    draft: given.Draft = None,
    draft_tokens: given.DraftTokens = None,
    draft_draws: given.DraftDraws = False,
    speculative_mode: given.SpeculativeMode = "auto",
    engine: Engine = "auto",
    engine_folder: EngineFolder = None,
    threads: Threads = None,
    check: Check = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate text from an artifact, or chat with it when no prompt is given.

    The text streams to standard output, the speed goes to standard error.
    """
    prompts = {"--prompt": prompt, "--prompt-file": prompt_file, "--chat": chat, "--prompt-ids": prompt_ids}
    chats = not any(value is not None for value in prompts.values()) and sys.stdin.isatty() and not as_json
    flag = "--chat" if chats else given.one_of({name: None if v is None else str(v) for name, v in prompts.items()})
    if system is not None and flag != "--chat":
        raise typer.BadParameter(f"expected it beside --chat or in a chat, found {flag}", param_hint="--system")
    ids = None if prompt_ids is None else list(integers(prompt_ids, flag))
    with Terminal(as_json, quiet) as terminal, naming_flags({**FLAGS, "prompt": flag, "messages": flag}):
        from hybridge.artifact.manifest import check_artifact
        from hybridge.artifact.path_kind import require_artifact
        from hybridge.runtime.llm import LLM
        from hybridge.runtime.sampling import SamplingParams

        if check:
            require_artifact(out)
            check_artifact(out)
        options: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
        }
        chosen = {name: value for name, value in options.items() if value is not None}
        params = SamplingParams(**chosen, max_new_tokens=max_new_tokens, stop=tuple(stop or ()))
        serving = draft_settings(out, draft, draft_tokens, speculative_mode, draft_draws)
        text, message = given.text_of(prompt, prompt_file), given.text_of(chat)
        if chats:
            serving = _chat_settings(out, serving)
        with LLM(out, engine=engine, threads=threads, engine_folder=engine_folder, serving=serving) as llm:
            if sampling == "recommended":
                params = replace(
                    llm.recommended_sampling, **chosen, max_new_tokens=params.max_new_tokens, stop=params.stop
                )
            if chats:
                from hybridge.cli.chat_loop import chat_loop
                from hybridge.runtime.conversation import Conversation

                chat_loop(llm, Conversation(llm, system), params, terminal)
                return
            messages = None if message is None else _messages(system, message)
            generation = _generate(llm, ids or text, messages, params, terminal)
            _report(generation, llm, max_new_tokens, draft is not None or draft_tokens is not None, terminal)


def _chat_settings(out: Path, serving: ServingSettings | None) -> ServingSettings | None:
    """Settings that keep the turns of a chat; a dense artifact has none."""
    from hybridge.artifact.config import read_config
    from hybridge.artifact.paged import PAGED
    from hybridge.artifact.path_kind import require_artifact
    from hybridge.runtime.prefix_cache.settings import RADIX
    from hybridge.runtime.serving.settings import ServingSettings

    require_artifact(out)
    if read_config(out).layout != PAGED:
        return serving
    return replace(serving or ServingSettings(), prefix_cache=RADIX)


def _messages(system: str | None, message: str) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": message}]


def _generate(
    llm: LLM,
    prompt: str | list[int] | None,
    messages: list[dict[str, str]] | None,
    sampling: SamplingParams,
    terminal: Terminal,
) -> Generation:
    """Stream the text; returns the whole generation. AnswerInterrupted at Ctrl-C after some of it was printed."""
    pieces: Any
    if messages is not None:
        pieces = llm.chat(messages, sampling, stream=True)
    else:
        pieces = llm.generate(prompt, sampling, stream=True)
    generation, times, started = None, [], time.perf_counter()
    try:
        for piece in pieces:
            times += [time.perf_counter() - started] * len(piece.token_ids)
            terminal.write(piece.text)
            generation = piece.generation or generation
    except KeyboardInterrupt:
        if not times or terminal.as_json:
            raise
        terminal.write("\n")
        terminal.remark(interruption_summary(times, llm.engine.name))
        raise AnswerInterrupted from None
    terminal.write("\n")
    assert generation is not None
    return generation


def _report(generation: Generation, llm: LLM, max_new_tokens: int, speculates: bool, terminal: Terminal) -> None:
    """Remarks on standard error, and the JSON document."""
    document = generation_document(generation, max_new_tokens, llm)
    terminal.remark(generation_summary(generation, llm.engine.name))
    drafts = llm.loop.speculation if speculates else None
    if drafts is not None:
        terminal.remark(draft_summary(drafts))
        document["speculation"] = drafts.to_json()
    for note in document["notes"]:
        terminal.remark(f"note: {note}")
    terminal.document(document)
