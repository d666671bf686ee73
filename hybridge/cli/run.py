"""hybridge run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridge.cli.options import Artifact, Engine, Json, Quiet, Threads, integers
from hybridge.cli.terminal import Terminal
from hybridge.cli.text import seconds_text

if TYPE_CHECKING:
    from runtime.generation import Generation
    from runtime.llm import LLM
    from runtime.sampling import SamplingParams


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
    max_new_tokens: Annotated[int, typer.Option(help="Stop after this many tokens.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most likely tokens up to this probability; 1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Keep tokens this likely relative to the best; 0 is off.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 avoids repetition; 1 is off.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Draw the same tokens again.", show_default="random")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop at this text (repeatable).", show_default=False)
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate text from an artifact. The text streams to standard output, the speed goes to standard error."""
    given = [
        name
        for name, value in (("--prompt", prompt), ("--chat", chat), ("--prompt-ids", prompt_ids))
        if value is not None
    ]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise typer.BadParameter(f"expected one of --prompt, --chat and --prompt-ids, found {found}")
    ids = None if prompt_ids is None else list(integers(prompt_ids, "--prompt-ids"))
    with Terminal(as_json, quiet) as terminal:
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
        with LLM(out, engine=engine, threads=threads) as llm:
            generation = _generate(llm, ids or prompt, chat, sampling, terminal)
        terminal.remark(_summary(generation))
        terminal.document(_document(generation, llm.engine.name))


def _check_prompt(options: dict[str, str | None]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise typer.BadParameter(f"expected one of {', '.join(options)}, found {found}")


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


def _summary(generation: Generation) -> str:
    timings = generation.timings
    rate = timings.decode_tokens_per_second
    speed = "" if rate is None else f", {rate:.1f} tokens/s"
    return (
        f"[{len(generation.prompt_token_ids)} prompt tokens, {timings.new_tokens} new, first after "
        f"{seconds_text(timings.first_token)}{speed}, ended by {generation.finish_reason}]"
    )


def _document(generation: Generation, engine: str) -> dict[str, Any]:
    data = asdict(generation)
    data["timings"]["decode_tokens_per_second"] = generation.timings.decode_tokens_per_second
    return {"engine": engine, **data}
