"""A draft model proposes what it would say itself, whatever happened to its proposals before."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.draft_model import ModelDrafter
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import DraftModel, DraftRequest, SpeculationSettings
from tests.runtime.serving.toy_loop import answers as answers_of
from tests.runtime.serving.toy_loop import make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import VOCAB, ToyPagedEngine, paged_config, toy_greedy
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample

MOST, LENGTH = 4, 90
KINDS = {"hybrid": HYBRID, "attention": ["attention"] * 2, "recurrent": ["mamba"] * 2}


def drafter_of(
    layers: list[str], rows: int = 4, memory: int | None = None, vocab: int = VOCAB, **limits: int
) -> tuple[ModelDrafter, ToyPagedEngine]:
    config = paged_config(layers, max_seq_len=200, vocab=vocab)
    engine = ToyPagedEngine(config, **{"max_tokens": 24, "max_rows": 3, **limits})
    return ModelDrafter(engine, VOCAB, rows, LENGTH, MOST, memory), engine


def greedy(engine: ToyPagedEngine, tokens: list[int], most: int) -> tuple[int, ...]:
    return tuple(toy_greedy(engine.config, tokens, most))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", [None, 2000, 9000])
def test_any_number_of_correct_draft_tokens(kind: str, memory: int | None) -> None:
    """Sequences of their own lengths, some of which sit out, are forgotten, or lose their memory to others."""
    (drafter, engine), rng = drafter_of(KINDS[kind], memory=memory), np.random.default_rng(5)
    texts = {id_: rng.integers(0, VOCAB, 1 + 9 * id_).tolist() for id_ in range(5)}
    given = empty = 0
    for _ in range(60):
        chosen = sorted(rng.permutation(list(texts))[: int(rng.integers(1, 5))].tolist())
        requests = [DraftRequest(id_, texts[id_], int(rng.integers(1, MOST + 1))) for id_ in chosen]
        for each, proposal in zip(requests, drafter.propose(requests), strict=True):
            found = proposal.token_ids
            given, empty = given + bool(found), empty + (not found)
            assert not found or found == greedy(engine, texts[each.sequence], each.most)
            texts[each.sequence] += [*found[: int(rng.integers(0, len(found) + 1))], int(rng.integers(0, VOCAB))]
        for id_ in [id_ for id_, text in texts.items() if len(text) > LENGTH - 5]:
            drafter.forget(id_)
            del texts[id_]
            texts[max(texts, default=0) + 10] = rng.integers(0, VOCAB, int(rng.integers(1, 50))).tolist()
    assert given > 50 and (empty == 0 or memory is not None)


def test_a_step_runs_all_sequences_and_consumes_new_tokens_only() -> None:
    drafter, engine = drafter_of(HYBRID)
    texts = [[1, 2, 3], [4, 5], [6]]

    def counted() -> tuple[int, int]:
        steps, tokens = engine.steps, engine.tokens
        requests = [DraftRequest(id_, text, MOST) for id_, text in enumerate(texts)]
        for text, proposal in zip(texts, drafter.propose(requests), strict=True):
            text += [*proposal.token_ids[:2], 60]
        return engine.steps - steps, engine.tokens - tokens

    # The prompts and three draft tokens of each; then one new token, as the draft tokens were consumed when they came.
    assert [counted(), counted()] == [(MOST, 6 + 9), (MOST, 3 + 9)]


def test_tokens_that_one_model_does_not_have() -> None:
    larger, engine = drafter_of(HYBRID, vocab=VOCAB + 40)
    for start in range(12):
        (proposal,) = larger.propose([DraftRequest(start, [start, 3], MOST)])
        whole = greedy(engine, [start, 3], MOST)
        end = next((i for i, token in enumerate(whole) if token >= VOCAB), MOST)
        assert proposal.token_ids == whole[:end]
    smaller, engine = drafter_of(HYBRID, vocab=40)
    requests = [DraftRequest(0, [1, 50], MOST), DraftRequest(1, [1, 5], MOST), DraftRequest(2, [1, 40], MOST)]
    found = [proposal.token_ids for proposal in smaller.propose(requests)]
    assert found == [(), greedy(engine, [1, 5], MOST), ()]


def test_there_are_no_draft_tokens_beyond_the_drafts_maximum_length() -> None:
    engine = ToyPagedEngine(paged_config(HYBRID, max_seq_len=10))
    drafter = ModelDrafter(engine, VOCAB, 1, LENGTH, MOST)
    sizes = [len(drafter.propose([DraftRequest(n, [1] * n, MOST)])[0]) for n in (7, 8, 9, 10, 11, 30)]
    assert sizes == [4, 3, 2, 1, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_without_memory_in_a_step_is_drafted_in_the_next(kind: str) -> None:
    """With the same tokens, and another number of draft tokens; nothing was accepted in between."""
    drafter, engine = drafter_of(KINDS[kind])
    text = [1, 2, 3, 4, 5, 6, 7]
    for most in (1, 1, MOST, 2, MOST):
        [proposal] = drafter.propose([DraftRequest(0, text, most)])
        assert proposal.token_ids == greedy(engine, text, most)
    text += [*greedy(engine, text, 2), 60]
    assert drafter.propose([DraftRequest(0, text, MOST)])[0].token_ids == greedy(engine, text, MOST)


def test_after_a_failure_it_starts_from_the_prompt() -> None:
    drafter, engine = drafter_of(HYBRID)
    engine.fail_at = {3}
    with pytest.raises(EngineError, match="told to fail"):
        drafter.propose([DraftRequest(0, [1, 2], MOST)])
    engine.poison(range(engine.sizes.num_blocks), range(engine.sizes.num_slots))
    assert drafter.propose([DraftRequest(0, [1, 2], MOST)])[0].token_ids == greedy(engine, [1, 2], MOST)


def test_a_failure_before_the_first_token_gives_all_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, engine = drafter_of(HYBRID, rows=1)

    def broken(slots: list[int]) -> None:
        raise EngineError("no such slot")

    with monkeypatch.context() as patch, pytest.raises(EngineError, match="no such slot"):
        patch.setattr(engine, "zero_slots", broken)
        drafter.propose([DraftRequest(0, [1, 2], MOST)])
    assert drafter.propose([DraftRequest(1, [1, 2], MOST)])[0].token_ids == greedy(engine, [1, 2], MOST)


@pytest.mark.parametrize("memory", [100, 0])
def test_too_little_memory_is_refused(memory: int) -> None:
    words = rf"draft model's caches of one sequence of 94 tokens, found {memory}: give them"
    with pytest.raises(EngineError, match=words):
        drafter_of(HYBRID, memory=memory)


def test_the_loop_gets_the_same_tokens_from_a_model_that_often_is_right() -> None:
    requests = [make_request([3 + i, 4, 5 * i], 20, i, n=1 + i % 2) for i in range(7)]
    plain, _ = toy_loop()
    for request in requests:
        plain.add(request)
    same = ToyPagedEngine(paged_config(HYBRID), max_rows=5)
    speculation = SpeculationSettings(MOST, ModelDrafter(same, VOCAB, 4, 60, MOST))
    trying, _ = toy_loop(speculation=speculation)
    for request in requests:
        trying.add(request)
    assert answers_of(run_all(trying)) == answers_of(run_all(plain))
    metrics = trying.speculation
    assert metrics is not None and metrics.accepted == metrics.proposed > 20


@pytest.mark.parametrize(
    ("engine", "draft", "layout"),
    sample(
        itertools.product(("onnxruntime", "torch"), ("mamba2", "llama", "qwen3_next"), ("paged", "dense")),
        on_push=(("onnxruntime", "mamba2", "dense"),),
    ),
)
def test_real_models(engine: str, draft: str, layout: str, artifacts: ArtifactCache) -> None:
    if engine == "torch":
        pytest.importorskip("torch", reason="the torch engine needs torch")
    folder = artifacts.get("nemotron_h", "float32", layout="paged").folder
    second = artifacts.get(draft, "float32", layout=layout).folder
    prompts, sampling = [[5, 6, 7], [9] * 12, [1]], SamplingParams(ignore_eos=True)
    plain = [answer.token_ids for answer in LLM(folder, engine).generate(prompts, sampling, 12)]
    speculation = SpeculationSettings(3, DraftModel(second, threads=1), adaptive=False)
    with LLM(folder, engine, serving=ServingSettings(speculation=speculation)) as llm:
        assert [answer.token_ids for answer in llm.generate(prompts, sampling, 12)] == plain
        assert llm.loop.speculation.proposed > 0
    # A model that drafts for itself is always right.
    same = artifacts.get("nemotron_h", "float32", layout=layout).folder
    speculation = SpeculationSettings(3, DraftModel(same), adaptive=False)
    with LLM(folder, engine, serving=ServingSettings(speculation=speculation)) as llm:
        assert [answer.token_ids for answer in llm.generate(prompts, sampling, 12)] == plain
        assert llm.loop.speculation.accepted == llm.loop.speculation.proposed


def test_a_draft_model_must_be_opened_first(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="use LLM or AsyncLLM, which open it"):
        SpeculationSettings(3, DraftModel(tmp_path)).make_drafter()


def test_tokenizers_are_compared_by_content(tmp_path: Path) -> None:
    from hybridge.runtime.serving.open_drafter import check_same_tokenizer
    from hybridge.runtime.text import Tokenizer

    def tokenizer(name: str, **changes: object) -> Tokenizer:
        folder = tmp_path / name
        folder.mkdir()
        words = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}
        text = {
            "version": "1.0",
            "added_tokens": [],
            "model": words,
            "pre_tokenizer": {"type": "Whitespace"},
            **changes,
        }
        (folder / "tokenizer.json").write_text(json.dumps(text))
        return Tokenizer.from_folder(folder)

    one = tokenizer("one")
    check_same_tokenizer(one, tokenizer("two", truncation=None), tmp_path)
    check_same_tokenizer(None, None, tmp_path)
    other = tokenizer("other", model={"type": "WordLevel", "vocab": {"b": 0, "a": 1, "?": 2}, "unk_token": "?"})
    with pytest.raises(EngineError, match="expected a draft with the model's tokenizer, found another model: use a"):
        check_same_tokenizer(one, other, tmp_path)
    with pytest.raises(EngineError, match="found the draft without one"):
        check_same_tokenizer(one, None, tmp_path)
