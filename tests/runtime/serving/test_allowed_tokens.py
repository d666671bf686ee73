"""Bit masks of the caller decide which tokens come next, with and without draft tokens, in each answer by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.sampling import Sampler, SamplingParams
from hybridge.runtime.sampling.edits import mask_of
from hybridge.runtime.serving.request import Output
from hybridge.runtime.serving.step_packer import StepPacker
from hybridge.runtime.speculation import SpeculationSettings
from tests.runtime.sampling.edited import edited
from tests.runtime.serving.test_prefix_cache import poison
from tests.runtime.serving.toy_loop import ahead_loop, answers, make_request, run_all, toy_loop
from tests.runtime.toy_ahead_engine import AheadToyEngine
from tests.runtime.toy_paged_engine import VOCAB, toy_logits
from tests.support.announced import Announced

NEW, FEW = 9, range(3, 9)


class OtherThanLast:
    """Few tokens, so that n-grams repeat: each but the last one; first, the even ones."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def allowed(self) -> list[int]:
        return [token for token in FEW if (token != self.tokens[-1] if self.tokens else token % 2 == 0)]

    def mask(self) -> np.ndarray:
        return mask_of(np.array(self.allowed()), VOCAB).view(np.int32)

    def accept(self, token: int) -> None:
        assert token in self.allowed(), "a token that was not allowed"
        self.tokens.append(token)


def greedy(config: RuntimeConfig, prompt: list[int], new: int, **options: Any) -> tuple[int, ...]:
    """The answer that keeps to ``OtherThanLast``, without a mask, written out."""
    follow, tokens = OtherThanLast(), list(prompt)
    for _ in range(new):
        params = SamplingParams(allowed_token_ids=follow.allowed(), **options)
        scores = edited(toy_logits(config, tokens), params, prompt, tokens[len(prompt) :])
        tokens.append(int(scores.argmax()))
        follow.accept(tokens[-1])
    return tuple(tokens[len(prompt) :])


class Failing(OtherThanLast):
    """``broken`` breaks it at its third token."""

    def __init__(self, broken: Callable[[], np.ndarray], on_accept: bool) -> None:
        super().__init__()
        self._broken, self._on_accept = broken, on_accept

    def mask(self) -> np.ndarray:
        return self._broken() if len(self.tokens) == 2 and not self._on_accept else super().mask()

    def accept(self, token: int) -> None:
        super().accept(token)
        if len(self.tokens) == 2 and self._on_accept:
            self._broken()


@pytest.mark.parametrize("ahead", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("drafts", [None, SpeculationSettings(3, adaptive=False, shortest=1)], ids=["plain", "ngram"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.4, "seed": 3}, {"repetition_penalty": 1.5, "logprobs": 1}])
def test_only_allowed_tokens_are_sampled(options: dict, drafts: SpeculationSettings | None, ahead: bool) -> None:
    loop, engine = toy_loop(speculation=drafts, ahead=ahead)
    made: list[OtherThanLast] = []

    def make() -> OtherThanLast:
        made.append(OtherThanLast())
        return made[-1]

    prompt = [3, 4, 5] * 4
    masked = loop.add(make_request(prompt, NEW, n=2, allowed_tokens=make, **options))
    plain = loop.add(make_request([7], NEW))
    found = answers(run_all(loop))
    assert [tuple(each.tokens) for each in made] == [found[masked, choice] for choice in range(2)]
    assert len(found[plain, 0]) == NEW
    assert drafts is None or (loop.speculation is not None and loop.speculation.proposed)
    if isinstance(engine, AheadToyEngine):
        # Before the tokens that the masks follow, unless the host needs the logits.
        assert (engine.chained >= NEW - 3) == (drafts is None and "logprobs" not in options)
    if options.get("temperature"):
        return
    assert found[masked, 0] == found[masked, 1] == greedy(engine.config, prompt, NEW, **options)


def fail() -> np.ndarray:
    raise ValueError("no such rule")


@pytest.mark.parametrize("ahead", [False, True], ids=["host", "device"])
@pytest.mark.parametrize(
    ("broken", "on_accept", "words"),
    [
        (fail, False, r"allowed_tokens: expected a mask, found ValueError: no such rule"),
        (fail, True, r"allowed_tokens: expected token \d+ to be accepted, found ValueError: no such rule"),
        (lambda: np.zeros(1, np.int64), False, r"expected a mask of uint32\[\d+\], found int64\[1\]"),
        (lambda: np.zeros((9, 9), np.uint32), False, r"expected a mask of uint32\[\d+\], found uint32\[9, 9\]"),
        (lambda: mask_of(np.array([], np.int64), VOCAB), False, "expected a token that can be sampled, found none"),
    ],
)
def test_a_bad_mask_ends_its_own_request(
    broken: Callable[[], np.ndarray], on_accept: bool, words: str, ahead: bool
) -> None:
    loop, _ = toy_loop(ahead=ahead)
    plain = loop.add(make_request([7], NEW))
    bad = loop.add(make_request([7], NEW, allowed_tokens=lambda: Failing(broken, on_accept)))
    no_mask = loop.add(make_request([7], NEW, allowed_tokens=lambda: None))
    outputs = run_all(loop)
    errors = {output.request_id: output.error for output in outputs if output.error}
    assert set(errors) == {bad, no_mask} and all(isinstance(error, RequestError) for error in errors.values())
    with pytest.raises(RequestError, match=words):
        raise errors[bad]
    assert "expected an object with `mask` and `accept`, found NoneType" in str(errors[no_mask])
    assert len(answers(outputs)[plain, 0]) == NEW


@pytest.mark.parametrize("ahead", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("drafts", [None, SpeculationSettings(2, adaptive=False, shortest=1)], ids=["plain", "ngram"])
def test_methods_that_cannot_be_looked_up_are_methods_that_there_are_not(
    drafts: SpeculationSettings | None, ahead: bool
) -> None:
    """``fork``, ``prepare`` and ``coming`` may be left out."""

    class Delegating(OtherThanLast):
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    loop, engine = toy_loop(ahead=ahead, speculation=drafts)
    masked = loop.add(make_request([3, 4], NEW, allowed_tokens=Delegating))
    plain = loop.add(make_request([7], NEW))
    found = answers(run_all(loop))
    assert found[masked, 0] == greedy(engine.config, [3, 4], NEW) and len(found[plain, 0]) == NEW


@pytest.mark.parametrize("ahead", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("drafts", [None, SpeculationSettings(2, adaptive=False, shortest=1)], ids=["plain", "ngram"])
def test_masks_are_read_after_a_step_is_launched(
    ahead: bool, drafts: SpeculationSettings | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that another thread computes them meanwhile."""
    loop, engine = toy_loop(ahead=ahead, speculation=drafts)
    order: list[str] = []

    class Recorded(OtherThanLast):
        def mask(self) -> np.ndarray:
            order.append("mask")
            return super().mask()

        def prepare(self) -> None:
            order.append("prepare")

    def recorded(launch: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            order.append("run")
            return launch(*given)

        return run

    monkeypatch.setattr(engine, "launch", recorded(engine.launch))
    monkeypatch.setattr(engine, "launch_next", recorded(engine.launch_next))
    loop.add(make_request([3, 4] * 3, 6, allowed_tokens=Recorded))
    run_all(loop)
    # Behind each run, the masks of its tokens. They are prepared when the tokens of the run before are known; behind
    # the launch of a device.
    first, *steps = "".join(each[0] for each in order).split("r")
    assert not first and len(steps) > 2 and steps[0].startswith("pm")
    for step in steps[:-1]:
        assert step.startswith("pm") if ahead else step.lstrip("p")[0] == "m" and step[-1] == "p"


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("kind", [EngineError, KeyboardInterrupt])
def test_a_choice_that_fails_ends_its_step_and_no_other(
    at: int, kind: type[BaseException], announced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one behind a step alone, others when the step after it has been planned, or with its launch."""
    allowed = (lambda: Announced(OtherThanLast(), VOCAB)) if announced else OtherThanLast
    loop, engine = ahead_loop(block_size=4)
    calls, choose = [0], engine.choose

    def failing(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise kind("no choice")
        return choose(*given)

    monkeypatch.setattr(engine, "choose", failing)
    for row in range(2):
        loop.add(make_request([7, row], NEW, allowed_tokens=allowed))
    outputs = []
    with contextlib.suppress(KeyboardInterrupt):
        outputs += run_all(loop)
    outputs += run_all(loop)
    assert len([output for output in outputs if output.error]) == 2
    loop.scheduler.check_integrity()
    again = loop.add(make_request([7, 1], NEW, allowed_tokens=allowed))
    assert len(answers(run_all(loop))[again, 0]) == NEW
    assert bool(engine.joined) == announced


@pytest.mark.parametrize("kind", [EngineError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "part"),
    [
        (StepPacker, "pack_ahead"),
        (AheadToyEngine, "prepare_next"),
        (Sampler, "mask_arrived"),
        (AheadToyEngine, "launch_next"),
    ],
    ids=["packing", "preparation", "arrival", "launch"],
)
def test_a_step_that_fails_ahead_takes_no_token_from_the_step_before(
    owner: type, part: str, after: bool, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two sequences of that step, the one with the next token fails, and the one that has ended has its answer.

    The error comes before that part of its work, or after it.
    """
    loop, engine = ahead_loop(block_size=4, max_rows=2)
    original = getattr(owner, part)

    def failing(*given: Any) -> Any:
        if engine.joined < 4:
            return original(*given)
        if after:
            original(*given)
        raise kind("no step")

    def allowed() -> Announced:
        return Announced(OtherThanLast(), VOCAB)

    # The fifth step that is launched with a choice follows the last token of the first request.
    lengths = {loop.add(make_request([7, row], new, allowed_tokens=allowed)): new for row, new in enumerate((5, 9, 4))}
    ends, fails, waits = lengths
    outputs = list[Output]()
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(owner, part, failing)
        while not any(output.error for output in outputs):
            outputs += loop.step()
    poison(loop, engine)
    outputs += run_all(loop)
    errors = {output.request_id: str(output.error) for output in outputs if output.error}
    assert list(errors) == [fails] and ("no step" if kind is EngineError else "interrupted") in errors[fails]
    found = answers(outputs)
    assert {id_: found[id_, 0] for id_ in (ends, waits)} == {
        id_: greedy(engine.config, [7, row], lengths[id_]) for row, id_ in enumerate(lengths) if id_ != fails
    }


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("broken", ["mask", "coming"])
def test_an_answer_without_a_mask_ends_alone_where_masks_are_announced(announced: bool, broken: str) -> None:
    class Broken(Announced):
        def mask(self) -> np.ndarray:
            if broken == "mask" and len(source.tokens) == 3:
                raise ValueError("no mask")
            return super().mask()

        def coming(self) -> np.ndarray:
            if broken == "coming":
                raise ValueError("no array")
            return super().coming()

    source = OtherThanLast()
    loop, _ = ahead_loop(block_size=4)
    loop.add(make_request([7, 1], NEW, allowed_tokens=lambda: Broken(source, VOCAB)))
    other = (lambda: Announced(OtherThanLast(), VOCAB)) if announced else OtherThanLast
    last = loop.add(make_request([7, 2], NEW, allowed_tokens=other))
    outputs = run_all(loop)
    assert ["no mask" in str(each.error) or "no array" in str(each.error) for each in outputs if each.error] == [True]
    alone, _ = ahead_loop(block_size=4)
    first = alone.add(make_request([7, 2], NEW, allowed_tokens=OtherThanLast))
    assert answers(outputs)[last, 0] == answers(run_all(alone))[first, 0]
    loop.scheduler.check_integrity()
