"""``sampling`` on the GPU chooses exactly the host's tokens, and its samples follow the distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.sampling_memory import torch_sampling
from hybridge.runtime.sampling import DrawError, SampledToken, Sampler, SamplingParams, TokenSampling, sample_rows
from tests.runtime.sampling.chi_square import chi_square_fits
from tests.runtime.sampling.filter_cases import FILTERS

pytestmark = pytest.mark.gpu

SETTINGS: list[dict[str, Any]] = [
    *FILTERS,
    {"top_k": 1500},
    {"top_p": 0.99, "min_p": 1e-4},
    {"top_p": 0.9, "logit_bias": {0: 2.0}},
    {"top_k": 40_000, "top_p": 0.7},
    {"logprobs": 0},
    {"logprobs": 5, "top_k": 3},
    {"logprobs": 64, "repetition_penalty": 1.3},
    {"logit_bias": {0: 3.0}, "frequency_penalty": 2.0, "presence_penalty": -2.0, "min_tokens": 5},
    {"repetition_penalty": 100.0, "logit_bias": {0: -100.0}},
    {"allowed_token_ids": [0]},
    {"allowed_token_ids": range(0, 1 << 19, 3), "top_k": 50, "top_p": 0.8},
]
TEMPERATURES = (0.0, 1e-9, 0.7, 1.0, 50.0)


def samplers(vocab: int, temperature: float) -> list[Sampler]:
    """One sampler for each of SETTINGS, with a prompt and an answer of some tokens."""
    rng, found = np.random.default_rng(vocab), []
    for given in SETTINGS:
        settings = dict(given)
        if "allowed_token_ids" in settings:
            settings["allowed_token_ids"] = [token for token in settings["allowed_token_ids"] if token < vocab]
        params = SamplingParams(temperature=temperature, seed=int(rng.integers(2**62)), **settings)
        sampler = Sampler(params, rng.integers(0, vocab, 700).tolist(), [0], [(vocab // 3,)] if vocab > 3 else [])
        for token in rng.integers(0, vocab, 3).tolist():
            sampler.record(token)
        found.append(sampler)
    return found


def logits_of(kind: str, rows: int, vocab: int) -> np.ndarray:
    rng = np.random.default_rng(3 + vocab)
    if kind == "ties":
        return rng.integers(-2, 3, (rows, vocab)).astype(np.float32)
    if kind == "equal":
        return np.zeros((rows, vocab), np.float32)
    if kind == "one token":
        found = np.full((rows, vocab), -np.inf, np.float32)
        found[np.arange(rows), rng.integers(0, vocab, rows)] = -3e38
        return found
    found = (rng.choice([0.1, 1, 4, 30], (rows, 1)) * rng.standard_normal((rows, vocab))).astype(np.float32)
    if kind == "rounded":
        # As of a model in bfloat16: many tokens have the same logit.
        return (found.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if kind == "not finite":
        found[::3, vocab // 2], found[1::3], found[2::3, 0] = np.nan, -np.inf, np.inf
    return found


def chosen(logits: np.ndarray, samplings: dict[int, TokenSampling]) -> dict[int, SampledToken]:
    """The kernels' tokens by row, without rows left to the host; memory around the logits is NaN."""
    rows, vocab = logits.shape
    device = TorchDevice("cuda")
    lists = any(draw.params.logprobs is not None for draw in samplings.values())
    chooser = torch_sampling(device, rows, vocab, lists)
    guarded = torch.full((rows + 2, vocab), float("nan"), device="cuda")
    guarded[1:-1] = torch.from_numpy(logits)
    torch.cuda.synchronize()
    for _ in range(2):  # counters are zero again after a run
        chooser.fill(samplings)
        with device.active():
            chooser.enqueue(guarded[1:-1])
        device.synchronize()
    assert guarded[0].isnan().all() and guarded[-1].isnan().all()
    return chooser.sampled(samplings)


def same(found: SampledToken | None, expected: SampledToken | DrawError) -> bool:
    if isinstance(expected, Exception):
        return found is None
    token, logprobs = expected
    if found is None:
        # Lists with tokens of zero probability are left to the host.
        return logprobs is not None and any(logprob == -np.inf for _, logprob in logprobs.top)
    if found[0] != token or (found[1] is None) != (logprobs is None):
        return False
    if found[1] is None or logprobs is None:
        return True
    ids, values = zip(*((0, logprobs.logprob), *logprobs.top), strict=True)
    found_ids, found_values = zip(*((0, found[1].logprob), *found[1].top), strict=True)
    return ids == found_ids and np.allclose(values, found_values, atol=1e-5)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("kind", ["normal", "rounded", "ties", "equal", "one token", "not finite"])
@pytest.mark.parametrize("vocab", [1, 2, 33, 2047, 8193, 151_936, 300_001])
def test_tokens_are_those_of_the_host(vocab: int, kind: str, temperature: float) -> None:
    if vocab > 10_000 and temperature not in (0.7, 50.0):
        pytest.skip("the host takes long, and smaller vocabularies show it")
    samplings = {row: sampler.draw(vocab) for row, sampler in enumerate(samplers(vocab, temperature))}
    logits = logits_of(kind, len(samplings), vocab)
    found, expected = chosen(logits, samplings), sample_rows(list(samplings.values()), logits)
    wrong = [(row, SETTINGS[row], found.get(row), e) for row, e in enumerate(expected) if not same(found.get(row), e)]
    assert not wrong


def test_rows_without_settings_get_the_first_of_equal_maxima() -> None:
    device = TorchDevice("cuda")
    chooser = torch_sampling(device, 3, 70_000, lists=False)
    logits = torch.zeros(3, 70_000, device="cuda")
    logits[0, [69_999, 31]], logits[2, 5] = 2.0, float("nan")
    torch.cuda.synchronize()
    chooser.fill({})
    with device.active():
        chooser.enqueue(logits)
    device.synchronize()
    assert chooser.best.tolist() == [31, 0, -1]


@pytest.mark.parametrize("settings", [{}, {"top_k": 6}, {"top_p": 0.8, "min_p": 0.02}], ids=str)
def test_draws_follow_the_distribution(settings: dict[str, Any]) -> None:
    """One row per seed; the host's samples are tested against float64."""
    rows, vocab = 20_000, 97
    logits = np.tile((2 * np.random.default_rng(0).standard_normal(vocab)).astype(np.float32), (rows, 1))
    samplings = {row: Sampler(SamplingParams(temperature=0.9, seed=row, **settings)).draw(vocab) for row in range(rows)}
    counts = np.bincount([token for token, _ in chosen(logits, samplings).values()], minlength=vocab)
    wide = logits[0].astype(np.float64) / 0.9
    expected = np.exp(wide - wide.max())
    order = np.argsort(-expected)
    if "top_k" in settings:
        expected[order[6:]] = 0
    if "top_p" in settings:
        expected[order[1 + int(np.searchsorted(np.cumsum(expected[order]), 0.8 * expected.sum())) :]] = 0
        expected[expected < 0.02] = 0
    assert chi_square_fits(counts, rows * expected / expected.sum())
