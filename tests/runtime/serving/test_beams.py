"""Beam search over the toy model finds what transformers finds, which computes it from scratch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.sampling import SamplingParams
from tests.runtime.serving.toy_loop import Letters, make_request, run_all, toy_loop
from tests.runtime.toy_paged_engine import toy_logits

transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
torch = pytest.importorskip("torch", reason="transformers' beam search needs torch")

ENDS = (7, 20, 41)


class ToyModel(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc, name-defined]
    """The toy model in transformers, without a cache."""

    config_class = transformers.PretrainedConfig

    def __init__(self, config: RuntimeConfig) -> None:
        super().__init__(transformers.PretrainedConfig(vocab_size=config.vocab_size, num_hidden_layers=0))
        self._toy = config
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: Any, **_: Any) -> Any:
        rows = np.stack([toy_logits(self._toy, row) for row in input_ids.tolist()])
        logits = torch.from_numpy(rows.astype(np.float32))[:, None]
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)

    def prepare_inputs_for_generation(self, input_ids: Any, **_: Any) -> dict[str, Any]:
        return {"input_ids": input_ids}


def expected(
    config: RuntimeConfig, prompt: list[int], params: SamplingParams, new: int
) -> list[tuple[list[int], float]]:
    """The tokens and scores of the best answers."""
    found = ToyModel(config).generate(
        torch.tensor([prompt]),
        max_new_tokens=new,
        num_beams=params.beam_width,
        num_return_sequences=params.n,
        length_penalty=params.length_penalty,
        early_stopping=True,
        eos_token_id=list(ENDS),
        pad_token_id=ENDS[0],
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    answers = []
    for row, score in zip(found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist(), strict=True):
        end = next((place + 1 for place, token in enumerate(row) if token in ENDS), len(row))
        answers.append((row[:end], score))
    return answers


@pytest.mark.parametrize(("width", "n", "penalty"), [(2, 2, 1.0), (3, 3, 0.0), (4, 4, 2.0), (6, 6, 1.0), (7, 5, -1.0)])
def test_beams_are_those_of_transformers(width: int, n: int, penalty: float) -> None:
    """Answers that have not ended when as many have as there are beams are none."""
    for seed in range(3):
        loop, engine = toy_loop(eos=ENDS, memory_bytes=200_000, tokenizer=Letters())
        prompt, shows_end = [seed, seed + 1, 2], seed == 0
        request = make_request(
            prompt, 9, beam_width=width, n=n, length_penalty=penalty, include_stop_str_in_output=shows_end
        )
        loop.add(request)
        pieces = [each.piece for each in run_all(loop)]
        best = expected(engine.config, prompt, request.request.params, 9)
        assert len(pieces) == len(best) == n
        for piece, (tokens, score) in zip(pieces, best, strict=True):
            found, ended = piece.generation, tokens[-1] in ENDS
            assert list(found.token_ids) == tokens and found.score == pytest.approx(score, abs=1e-5)
            assert found.finish_reason == ("stop" if ended else "length")
            shown = tokens[:-1] if ended and not shows_end else tokens
            assert found.text == "".join(chr(48 + token) for token in shown)
