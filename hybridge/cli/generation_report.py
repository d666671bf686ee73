"""Report of ``hybridge run`` about a finished generation: one line, and a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hybridge.cli.text import seconds_text

if TYPE_CHECKING:
    from hybridge.runtime.generation import Generation
    from hybridge.runtime.llm import LLM


def generation_summary(generation: Generation, engine: str) -> str:
    """One line: tokens, speed, and what ended it."""
    timings = generation.timings
    rate = timings.decode_tokens_per_second
    speed = "" if rate is None else f", {rate:.1f} tokens/s"
    cached = f" ({generation.cached_tokens} cached)" if generation.cached_tokens else ""
    prompt = _counted(len(generation.prompt_token_ids), "prompt token")
    return (
        f"[{engine}: {prompt}{cached}, {timings.new_tokens} new, first after "
        f"{seconds_text(timings.first_token)}{speed}, ended by {generation.finish_reason}]"
    )


def interruption_summary(times: Sequence[float], engine: str) -> str:
    """As ``generation_summary``, after an interruption; ``times``: when each token came, in seconds from the call."""
    span = times[-1] - times[0]
    speed = f", {(len(times) - 1) / span:.1f} tokens/s" if span > 0 else ""
    return f"[{engine}: {_counted(len(times), 'new token')}, first after {seconds_text(times[0])}{speed}, interrupted]"


def generation_document(generation: Generation, max_new_tokens: int, llm: LLM) -> dict[str, Any]:
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
    prompt = _counted(len(generation.prompt_token_ids), "token")
    return (
        f"stopped at max_seq_len {max_seq_len}: a prompt of {prompt} leaves "
        f"room for {len(generation.token_ids)} new ones, not for --max-new-tokens {max_new_tokens}: for more, export "
        "with a larger --max-seq-len"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
