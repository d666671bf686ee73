"""A serving loop over the toy engine."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.generation import Request
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import Output, ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.text import Tokenizer
from hybridge.runtime.text.detokenizer import ByteDetokenizer
from tests.runtime.toy_ahead_engine import AheadToyEngine
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import VOCAB, ToyPagedEngine, paged_config

MAX_SEQ = 96


class Letters:
    """A tokenizer: a token is a character."""

    def detokenizer(self, prompt: Sequence[int], skip_special_tokens: bool) -> ByteDetokenizer:
        return ByteDetokenizer(lambda token: bytes([48 + token]))


def toy_loop(
    layers: Sequence[str] = HYBRID,
    window: int | None = None,
    eos: tuple[int, ...] = (),
    pad_to: int = 1,
    max_seq_len: int = MAX_SEQ,
    ahead: bool = False,
    max_rollback: int = 16,
    vocab: int = VOCAB,
    tokenizer: Tokenizer | Letters | None = None,
    **settings,
) -> tuple[ServingLoop, ToyPagedEngine]:
    """Rows, tokens and memory as in ``settings``; blocks of 4 tokens. ``ahead``: the engine runs ahead.

    ``max_rollback``: tokens of a row whose states it can roll back.
    """
    config: RuntimeConfig = paged_config(layers, max_seq_len, vocab, window=window, eos=eos)
    kind = AheadToyEngine if ahead else ToyPagedEngine
    engine = kind(config, max_tokens=70, max_rows=16, pad_to=pad_to, max_rollback=max_rollback)
    options = {"block_size": 4, "max_rows": 12, "max_tokens": 64, "memory_bytes": 10_000, **settings}
    return ServingLoop(engine, ServingSettings(**options), eos, tokenizer), engine  # type: ignore[arg-type]


def ahead_loop(**settings) -> tuple[ServingLoop, AheadToyEngine]:
    """A loop over an engine that runs ahead."""
    loop, engine = toy_loop(ahead=True, **settings)
    assert isinstance(engine, AheadToyEngine)
    return loop, engine


def make_request(prompt: Sequence[int], new: int, index: int = 0, priority: int = 0, **params) -> ServingRequest:
    """A request with greedy sampling unless ``params`` say otherwise."""
    return ServingRequest(Request(tuple(prompt), SamplingParams(**params), new), index, priority)


def run_all(loop: ServingLoop) -> list[Output]:
    """All outputs until all requests have ended; the scheduler is checked after each step."""
    outputs = []
    while loop.busy:
        outputs += loop.step()
        loop.scheduler.check_integrity()
    assert not loop.scheduler.sequences
    return outputs


def answers(outputs: Sequence[Output]) -> dict[tuple[int, int], tuple[int, ...]]:
    """The tokens of each answer by request and choice, which are also those of its pieces."""
    pieces: dict[tuple[int, int], list[int]] = {}
    done = {}
    for output in outputs:
        if output.piece is not None:
            key = output.request_id, output.piece.choice
            pieces.setdefault(key, []).extend(output.piece.token_ids)
            if output.piece.generation is not None:
                done[key] = output.piece.generation.token_ids
    assert {key: tuple(tokens) for key, tokens in pieces.items() if key in done} == done
    return done
