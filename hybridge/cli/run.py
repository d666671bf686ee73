"""hybridge run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridge.cli import generation_options as given
from hybridge.cli.drafts import draft_settings, draft_summary
from hybridge.cli.flag_names import flags_of, naming_flags
from hybridge.cli.generation_report import generation_document, generation_summary
from hybridge.cli.options import Artifact, Check, Engine, EngineFolder, Json, Quiet, Threads, integers
from hybridge.cli.terminal import Terminal

if TYPE_CHECKING:
    from runtime.generation import Generation
    from runtime.llm import LLM
    from runtime.sampling import SamplingParams

FLAGS = {
    **flags_of("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_new_tokens", "stop"),
    **flags_of("engine", "engine_folder", "threads"),
    "speculation": "--draft",
}


def run(
    out: Artifact,
    prompt: given.Prompt = None,
    chat: given.Chat = None,
    prompt_ids: given.PromptIds = None,
    engine: Engine = "auto",
    max_new_tokens: given.MaxNewTokens = 256,
    temperature: given.Temperature = 0.0,
    top_k: given.TopK = 0,
    top_p: given.TopP = 1.0,
    min_p: given.MinP = 0.0,
    repetition_penalty: given.RepetitionPenalty = 1.0,
    seed: given.Seed = None,
    stop: given.Stop = None,
    draft: given.Draft = None,
    draft_tokens: given.DraftTokens = None,
    draft_draws: given.DraftDraws = False,
    speculative_mode: given.SpeculativeMode = "auto",
    engine_folder: EngineFolder = None,
    threads: Threads = None,
    check: Check = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate text from an artifact. The text streams to standard output, the speed goes to standard error."""
    flag = given.one_of({"--prompt": prompt, "--chat": chat, "--prompt-ids": prompt_ids})
    ids = None if prompt_ids is None else list(integers(prompt_ids, flag))
    with Terminal(as_json, quiet) as terminal, naming_flags({**FLAGS, "prompt": flag, "messages": flag}):
        from artifact.manifest import check_artifact
        from artifact.path_kind import require_artifact
        from runtime.llm import LLM
        from runtime.sampling import SamplingParams

        if check:
            require_artifact(out)
            check_artifact(out)
        sampling = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            max_new_tokens=max_new_tokens,
            stop=tuple(stop or ()),
        )
        serving = draft_settings(out, draft, draft_tokens, speculative_mode, draft_draws)
        with LLM(out, engine=engine, threads=threads, engine_folder=engine_folder, serving=serving) as llm:
            generation = _generate(llm, ids or prompt, chat, sampling, terminal)
            _report(generation, llm, max_new_tokens, serving is not None, terminal)


def _generate(
    llm: LLM, prompt: str | list[int] | None, chat: str | None, sampling: SamplingParams, terminal: Terminal
) -> Generation:
    """Stream the text; returns the whole generation."""
    pieces: Any
    if chat is not None:
        pieces = llm.chat([{"role": "user", "content": chat}], sampling, stream=True)
    else:
        pieces = llm.generate(prompt, sampling, stream=True)
    generation = None
    for piece in pieces:
        terminal.write(piece.text)
        generation = piece.generation or generation
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
