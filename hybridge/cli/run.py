"""hybridge run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridge.cli.drafts import draft_settings, draft_summary
from hybridge.cli.flag_names import flags_of, naming_flags
from hybridge.cli.options import Artifact, Engine, EngineFolder, Json, Quiet, StateMode, Threads, integers
from hybridge.cli.terminal import Terminal
from hybridge.cli.text import seconds_text

if TYPE_CHECKING:
    from runtime.generation import Generation
    from runtime.llm import LLM
    from runtime.sampling import SamplingParams

FLAGS = flags_of(
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_new_tokens", "stop"),
    *("engine", "threads"),
)


def run(
    out: Artifact,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Text to continue.", show_default=False)] = None,
    chat: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Message to answer, in the chat template.", show_default=False)
    ] = None,
    prompt_ids: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Token ids to continue.", show_default=False)
    ] = None,
    engine: Engine = "auto",
    max_new_tokens: Annotated[int, typer.Option(help="Stop after this many tokens, or at max_seq_len.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most likely tokens up to this probability; 1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Keep tokens this likely relative to the best; 0 is off.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 avoids repetition; 1 is off.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Draw the same tokens again.", show_default="random")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop at this text (repeatable).", show_default=False)
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(metavar="ngram|mtp|DIR", help="Who proposes what a step tries at once.", show_default=False),
    ] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Proposed tokens of a step.", show_default="as many as fit")
    ] = None,
    speculative_mode: Annotated[
        StateMode, typer.Option(help="Let states wait while proposals are tried, or keep one after each of them.")
    ] = "auto",
    engine_folder: EngineFolder = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate text from an artifact. The text streams to standard output, the speed goes to standard error."""
    flag = _prompt_flag({"--prompt": prompt, "--chat": chat, "--prompt-ids": prompt_ids})
    ids = None if prompt_ids is None else list(integers(prompt_ids, flag))
    with Terminal(as_json, quiet) as terminal, naming_flags({**FLAGS, "prompt": flag, "messages": flag}):
        from runtime.llm import LLM
        from runtime.sampling import SamplingParams

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
        serving = draft_settings(out, draft, draft_tokens, speculative_mode)
        with LLM(out, engine=engine, threads=threads, engine_folder=engine_folder, serving=serving) as llm:
            generation = _generate(llm, ids or prompt, chat, sampling, terminal)
            document = _document(generation, max_new_tokens, llm)
            drafts = None if serving is None else llm.loop.speculation
        terminal.remark(_summary(generation, llm.engine.name))
        if drafts is not None:
            terminal.remark(draft_summary(drafts))
            document["speculation"] = drafts.to_json()
        for note in document["notes"]:
            terminal.remark(f"note: {note}")
        terminal.document(document)


def _prompt_flag(options: dict[str, str | None]) -> str:
    """The one flag of ``options`` that was given."""
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise typer.BadParameter(f"expected one of {', '.join(options)}, found {found}")
    return given[0]


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


def _summary(generation: Generation, engine: str) -> str:
    timings = generation.timings
    rate = timings.decode_tokens_per_second
    speed = "" if rate is None else f", {rate:.1f} tokens/s"
    return (
        f"[{engine}: {len(generation.prompt_token_ids)} prompt tokens, {timings.new_tokens} new, first after "
        f"{seconds_text(timings.first_token)}{speed}, ended by {generation.finish_reason}]"
    )


def _document(generation: Generation, max_new_tokens: int, llm: LLM) -> dict[str, Any]:
    """The generation, the engine, and what ended it where that was a limit."""
    data = asdict(generation)
    data["timings"]["decode_tokens_per_second"] = generation.timings.decode_tokens_per_second
    limit = _limit(generation, max_new_tokens)
    notes = list(llm.engine.notes)
    if limit == "max_seq_len":
        notes.append(_room(generation, max_new_tokens, llm.max_seq_len))
    return {"engine": llm.engine.name, **data, "limited_by": limit, "notes": notes}


def _limit(generation: Generation, max_new_tokens: int) -> str | None:
    """The limit that ended the generation, None when it ended by itself."""
    if generation.finish_reason != "length":
        return None
    return "max_new_tokens" if len(generation.token_ids) >= max_new_tokens else "max_seq_len"


def _room(generation: Generation, max_new_tokens: int, max_seq_len: int) -> str:
    return (
        f"stopped at max_seq_len {max_seq_len}: {len(generation.prompt_token_ids)} prompt tokens leave room for "
        f"{len(generation.token_ids)} new ones, not for --max-new-tokens {max_new_tokens}: for more, export with a "
        "larger --max-seq-len"
    )
