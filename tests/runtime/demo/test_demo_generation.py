"""The shipped checkpoints through export, ONNX Runtime and LLM, against transformers in float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridge
from hybridge.runtime.generation import Generation
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from tests.support.effort import sample

torch = pytest.importorskip("torch", reason="torch runs the reference")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
pytest.importorskip("onnxruntime", reason="the artifact runs in ONNX Runtime")

CHECKPOINTS = Path(__file__).parents[3] / "examples" / "checkpoints"
PROMPTS = (
    "Call me Ishmael. Some years ago",
    "In the beginning God created the heaven and the earth. And the earth was without form, and void;",
    "Fellow citizens",
    "A",
    "It was 1851 — naïve café 🐳, " * 9,
)
# Both sides compute in float32; the logits of these models reach about 15.
TOLERANCE = 2e-3


NEMOTRON, QWEN = "tiny-nemotron-h", "tiny-qwen3-next"


@pytest.fixture(scope="module", params=sample((NEMOTRON, QWEN), on_push=(NEMOTRON,)))
def checkpoint(request: pytest.FixtureRequest) -> Path:
    return CHECKPOINTS / request.param


@pytest.fixture(scope="module")
def llm(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    from hybridge.exporter.export import export_checkpoint

    out = tmp_path_factory.mktemp("demo") / "artifact"
    export_checkpoint(checkpoint, out)
    return LLM(out)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            # The CPU path clamps dt at time_step_min instead of the checkpoint's limit, which is (0, inf).
            module.time_step_limit = (0.0, float("inf"))
    return model


def reference_logits(model: Any, ids: Sequence[int]) -> np.ndarray:
    """Logits [len(ids), vocab] of one forward pass over all tokens, without any cache."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)]), use_cache=False).logits[0].float().numpy()


def assert_greedy(model: Any, generation: Generation) -> None:
    """Each token has the highest logit that transformers gives, up to rounding."""
    prompt = len(generation.prompt_token_ids)
    logits = reference_logits(model, [*generation.prompt_token_ids, *generation.token_ids])
    for step, token in enumerate(generation.token_ids):
        scores = logits[prompt + step - 1]
        assert scores[token] >= scores.max() - TOLERANCE


def test_greedy_tokens_are_those_of_transformers(checkpoint: Path, llm: LLM, model: Any) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer(PROMPTS[0], return_tensors="pt")
    expected = model.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids["input_ids"].shape[1] :]
    generation = llm.generate(PROMPTS[0], max_new_tokens=24)
    assert generation.prompt_token_ids == tuple(ids["input_ids"][0].tolist())
    assert generation.text == tokenizer.decode(expected, skip_special_tokens=True)
    assert_greedy(model, generation)


def test_a_ragged_batch_gives_the_same_as_each_alone(llm: LLM, model: Any) -> None:
    together = llm.generate(list(PROMPTS), SamplingParams(logprobs=0), max_new_tokens=10)
    for prompt, generation in zip(PROMPTS, together, strict=True):
        assert_greedy(model, generation)
        alone = llm.generate(prompt, SamplingParams(logprobs=0), max_new_tokens=10)
        assert alone.token_ids == generation.token_ids
        assert alone.logprobs is not None and generation.logprobs is not None
        for a, b in zip(alone.logprobs, generation.logprobs, strict=True):
            assert abs(a.logprob - b.logprob) < TOLERANCE


def test_logprobs_are_those_of_transformers(llm: LLM, model: Any) -> None:
    generation = llm.generate(PROMPTS[1], SamplingParams(1.0, seed=3, logprobs=4), max_new_tokens=16)
    assert generation.logprobs is not None
    prompt = len(generation.prompt_token_ids)
    logits = reference_logits(model, [*generation.prompt_token_ids, *generation.token_ids])
    expected = torch.log_softmax(torch.tensor(logits), dim=-1).numpy()
    for step, entry in enumerate(generation.logprobs):
        row = expected[prompt + step - 1]
        assert abs(entry.logprob - row[entry.token_id]) < TOLERANCE
        np.testing.assert_allclose([p for _, p in entry.top], np.sort(row)[::-1][:4], atol=TOLERANCE)


def test_more_prompts_than_rows_and_a_cache_that_grows(llm: LLM, model: Any) -> None:
    narrow = LLM(llm.folder, engine=llm.engine, max_batch_size=2)
    prompts = [[1, *range(100 + i, 100 + i + 40 * i)] for i in range(7)]
    counts = [12, 3, 7, 20, 1, 5, 30]
    generations = narrow.generate(prompts, [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in counts])
    for generation, count in zip(generations, counts, strict=True):
        assert len(generation.token_ids) == count
        assert_greedy(model, generation)


def test_a_prompt_in_several_chunks(llm: LLM, model: Any) -> None:
    prompt = np.random.default_rng(0).integers(7, 2048, 512 * 2 + 37)
    assert_greedy(model, llm.generate(prompt, max_new_tokens=4))


def test_a_cached_system_prompt_changes_nothing(llm: LLM, model: Any) -> None:
    fresh = LLM(llm.folder, engine=llm.engine)
    system = {"role": "system", "content": "Answer like a sailor."}
    conversation = [system, {"role": "user", "content": "Who are you?"}]
    plain = fresh.chat(conversation, max_new_tokens=16)
    prefix = fresh.cache_prefix([system])
    cached = fresh.chat(conversation, max_new_tokens=16)
    assert cached.cached_tokens == prefix.length and cached.token_ids == plain.token_ids
    assert_greedy(model, cached)
    again = fresh.generate(list(prefix.token_ids), max_new_tokens=8)
    # The last token of a prompt is computed, for its logits.
    assert again.cached_tokens == prefix.length - 1
    assert_greedy(model, again)


# cli/test_verify.py has the other one.
@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", [QWEN], indirect=True)
def test_the_artifact_is_verified(checkpoint: Path, llm: LLM) -> None:
    """Hidden states, caches and states of every layer, in float32 as the engine computes."""
    verdict = hybridge.verify(checkpoint, llm.folder, prompt_lengths=(70,), decode_steps=2)
    assert verdict.passed, verdict


def test_the_chat_prompt_is_that_of_transformers(checkpoint: Path, llm: LLM) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Who are you? 🐳"}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    generation = llm.chat(messages, max_new_tokens=4)
    assert list(generation.prompt_token_ids) == expected
