"""What the folders of examples/checkpoints promise."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from demo_training.evaluation import held_out_loss, windows_from_text
from demo_training.families import FAMILIES
from safetensors import safe_open

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Tokens agree between the checkpoints, so one of them stands for the tokenizer of all.
FIRST = EXAMPLES / "checkpoints" / "tiny-nemotron-h"


@pytest.fixture(scope="module", params=["tiny-nemotron-h", "tiny-qwen3-next"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    return EXAMPLES / "checkpoints" / request.param


@pytest.fixture(scope="module")
def report(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "training_report.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(FIRST)


@pytest.fixture(scope="module")
def model(checkpoint: Path, report: dict[str, Any]) -> Any:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    FAMILIES[report["family"]].prepare(loaded)
    return loaded.eval()


def test_transformers_as_it_comes_computes_what_the_config_states(checkpoint: Path, tokenizer: Any, model: Any) -> None:
    """Also where transformers clamps dt at time_step_min instead of time_step_limit."""
    stock = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = tokenizer("And the king said unto him, Go and call me Ishmael.", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(stock(ids).logits, model(ids).logits)


def test_size_limits(checkpoint: Path, report: dict[str, Any], model: Any) -> None:
    assert sum(path.stat().st_size for path in checkpoint.rglob("*")) <= 12_000_000
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert 1_000_000 <= parameters <= 5_000_000
    assert parameters == report["parameters"]


def test_every_kind_of_layer_is_there(checkpoint: Path, model: Any) -> None:
    if checkpoint == FIRST:
        assert isinstance(model, transformers.NemotronHForCausalLM)
        assert set(model.config.hybrid_override_pattern) == {"M", "*", "-"}
    else:
        assert isinstance(model, transformers.Qwen3NextForCausalLM)
        assert set(model.config.layer_types) == {"linear_attention", "full_attention"}


def test_weights_are_bf16_but_for_the_recurrence_parameters(checkpoint: Path, report: dict[str, Any]) -> None:
    wide = FAMILIES[report["family"]].fp32_suffixes
    found: set[tuple[str, str]] = set()
    with safe_open(checkpoint / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118
            found.add((next((s for s in wide if name.endswith(s)), "other"), weights.get_slice(name).get_dtype()))
    assert found == {*((suffix, "F32") for suffix in wide), ("other", "BF16")}


def test_the_tokenizers_are_the_same(checkpoint: Path) -> None:
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (checkpoint / name).read_bytes() == (FIRST / name).read_bytes()


def test_transformers_keeps_every_saved_tensor(checkpoint: Path) -> None:
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, output_loading_info=True
    )
    info = loaded[1]
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]


@pytest.mark.parametrize(
    "text",
    [
        "Call me Ishmael.",
        "  two  spaces\n\ttab\r\n",
        "naïve — “quoted” £5",
        "日本語 مرحبا 🐋👩‍🚀",
        "\x00\x7f\ufffd e\u0301",
    ],
)
def test_tokenizer_round_trips_any_text(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]) == text


def test_chat_template_renders_the_three_roles(tokenizer: Any) -> None:
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": f"{role}!"} for role in roles]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<s>" + "".join(f"<|{role}|>\n{role}!<|end|>\n" for role in roles) + "<|assistant|>\n"
    with pytest.raises(Exception, match="found tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_generation_stops_at_both_end_tokens(tokenizer: Any, model: Any) -> None:
    expected = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|end|>")]
    assert model.generation_config.eos_token_id == expected


def test_held_out_perplexity_is_the_reported_one(tokenizer: Any, model: Any, report: dict[str, Any]) -> None:
    text = (EXAMPLES / "text" / "heldout.txt").read_text(encoding="utf-8")
    windows = windows_from_text(tokenizer, text, report["held_out"]["window"])
    reported = report["held_out"]["first_4_windows"]
    measured = held_out_loss(model, windows[:4])
    assert measured.tokens == reported["tokens"] == 2048
    assert measured.perplexity == pytest.approx(reported["perplexity"], rel=0.01)


def test_greedy_continuation_is_made_of_english_words(tokenizer: Any, model: Any) -> None:
    prompt = tokenizer("The President of the United States", return_tensors="pt")
    output = model.generate(**prompt, max_new_tokens=32)[0, prompt["input_ids"].shape[1] :]
    words = re.findall(r"[a-z]+", tokenizer.decode(output, skip_special_tokens=True).lower())[:-1]
    unseen_text = (EXAMPLES / "text" / "heldout.txt").read_text(encoding="utf-8").lower()
    english = set(re.findall(r"[a-z]+", unseen_text))
    assert len(words) >= 10
    assert sum(word in english for word in words) >= 0.6 * len(words), words
