"""Checks that requests get the same tokens together as alone, and with draft tokens as without."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

import hybridge
from hardware.subject import CHECKED, Found, Subject
from hybridge.runtime.generation import Generation
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings

REQUESTS, NEW_TOKENS, LONGEST_PROMPT = 64, 24, 96
# Alternatives listed for each token, among which ties are looked for.
_LISTED = 4


@dataclass(frozen=True)
class Counts:
    """Requests by outcome. ties: another token of the same probability, up to rounding, was chosen."""

    equal: int
    ties: int
    different: int


def serve(subject: Subject) -> Found:
    """``REQUESTS`` at once and one after another, on the same engine."""
    prompts = _prompts(subject.config.vocab_size, min(LONGEST_PROMPT, subject.config.max_seq_len - NEW_TOKENS))
    drafts = subject.form.drafts
    speculation = SpeculationSettings(tokens=drafts, drafter=subject.form.drafter, shortest=1) if drafts else None
    together = _generated(subject, [prompts], speculation)
    alone = _generated(subject, [[prompt] for prompt in prompts], None)
    pairs = list(zip(together, alone, strict=True))
    outcomes = [outcome(one, other, subject.tie) for one, other in pairs]
    counts = Counts(*(outcomes.count(name) for name in ("equal", "tie", "different")))
    found: Found = {"requests": len(prompts), "draft_tokens": drafts, **vars(counts)}
    if counts.different:
        index = outcomes.index("different")
        found["error"] = (
            f"expected the tokens of each request alone, found others in {counts.different} of {len(prompts)}: request "
            f"{index} has {list(together[index].token_ids)} together, {list(alone[index].token_ids)} alone"
        )
    return found


def outcome(one: Generation, other: Generation, tie: float) -> str:
    """Whether two answers are "equal", "different", or first differ in tokens whose log-probabilities are a "tie"."""
    if one.token_ids == other.token_ids:
        return "equal"
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    place = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
    if place is None or other.logprobs is None:
        return "different"
    listed = dict(other.logprobs[place].top)
    chosen, best = listed.get(one.token_ids[place]), other.logprobs[place].logprob
    return "tie" if chosen is not None and abs(best - chosen) <= tie else "different"


def _generated(
    subject: Subject, batches: list[list[list[int]]], speculation: SpeculationSettings | None
) -> list[Generation]:
    # A prefix cache would reuse the states of other requests.
    serving = ServingSettings(prefix_cache="off", speculation=speculation)
    sampling = hybridge.SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True, logprobs=_LISTED)
    with ExitStack() as opened:
        llm = opened.enter_context(hybridge.LLM(subject.artifact, engine=CHECKED, serving=serving))
        return [generation for batch in batches for generation in llm.generate(batch, sampling)]


def _prompts(vocabulary: int, longest: int) -> list[list[int]]:
    """Random tokens; every second prompt repeats a few, so that its continuation can be drafted."""
    random = np.random.default_rng(1)
    prompts = []
    for index in range(REQUESTS):
        length = int(random.integers(1, longest + 1))
        distinct = random.integers(0, vocabulary, length if index % 2 else min(length, 5))
        prompts.append(np.resize(distinct, length).tolist())
    return prompts
