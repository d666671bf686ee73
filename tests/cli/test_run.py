"""hybridge run on the shipped checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import hybridge

Capture = pytest.CaptureFixture[str]
PROMPT = ("--prompt", "The captain stood upon the deck")


def test_text_streams_to_standard_output(capfd: Capture, artifact: Path) -> None:
    shown = hybridge(capfd, "run", artifact, *PROMPT, "--max-new-tokens", "12")
    assert shown.code == 0, shown.err
    document = hybridge(capfd, "run", artifact, *PROMPT, "--max-new-tokens", "12", "--json").document
    assert shown.out == document["text"] + "\n" and document["text"].strip()
    assert "12 new" in shown.err and "tokens/s" in shown.err


def test_document(capfd: Capture, artifact: Path) -> None:
    document = hybridge(capfd, "run", artifact, *PROMPT, "--max-new-tokens", "5", "--json", "--quiet").document
    assert document["engine"] == "onnxruntime" and document["finish_reason"] == "length"
    assert len(document["token_ids"]) == 5 and document["timings"]["new_tokens"] == 5
    assert document["timings"]["first_token"] > 0 and "decode_tokens_per_second" in document["timings"]


def test_prompt_ids_equal_the_text(capfd: Capture, artifact: Path) -> None:
    text = hybridge(capfd, "run", artifact, *PROMPT, "--max-new-tokens", "6", "--json").document
    ids = ",".join(map(str, text["prompt_token_ids"]))
    again = hybridge(capfd, "run", artifact, "--prompt-ids", ids, "--max-new-tokens", "6", "--json").document
    assert again["token_ids"] == text["token_ids"]


def test_sampling_options_reach_the_sampler(capfd: Capture, artifact: Path) -> None:
    def tokens(*options: str) -> list[int]:
        outcome = hybridge(capfd, "run", artifact, *PROMPT, "--max-new-tokens", "16", "--json", *options)
        assert outcome.code == 0, outcome.err
        token_ids: list[int] = outcome.document["token_ids"]
        return token_ids

    greedy, hot = tokens(), ("--temperature", "1.5")
    assert tokens(*hot, "--seed", "3") == tokens(*hot, "--seed", "3") != tokens(*hot, "--seed", "4")
    for narrow in (("--top-k", "1"), ("--top-p", "1e-9"), ("--min-p", "1")):
        assert tokens(*hot, *narrow) == greedy
    assert tokens("--repetition-penalty", "1.8") != greedy


def test_stop_texts(capfd: Capture, artifact: Path) -> None:
    whole = hybridge(capfd, "run", artifact, *PROMPT, "--max-new-tokens", "24", "--json").document["text"]
    first, second = whole.split()[2], whole.split()[4]
    stopped = hybridge(
        capfd, "run", artifact, *PROMPT, "--max-new-tokens", "24", "--stop", second, "--stop", first, "--json"
    ).document
    assert stopped["finish_reason"] == "stop" and stopped["stopped_by"] in (first, second)
    assert stopped["text"] == whole[: whole.index(stopped["stopped_by"])]


def test_chat_uses_the_template(capfd: Capture, artifact: Path) -> None:
    chat = hybridge(capfd, "run", artifact, "--chat", "Hello", "--max-new-tokens", "4", "--json").document
    plain = hybridge(capfd, "run", artifact, "--prompt", "Hello", "--max-new-tokens", "4", "--json").document
    assert len(chat["prompt_token_ids"]) > len(plain["prompt_token_ids"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--prompt", "x", "--temperature", "-1"), "temperature"),
        (("--prompt", "x", "--top-p", "0"), "top_p"),
        (("--prompt", "x", "--max-new-tokens", "0"), "max_new_tokens"),
        (("--prompt-ids", "999999"), "999999"),
        (("--prompt", "sea " * 400), "300"),
        (("--prompt", "x", "--engine", "tensorrt"), "tensorrt"),
        (("--prompt", "x", "--engine", "torch"), "torch"),
    ],
)
def test_bad_requests(capfd: Capture, artifact: Path, options: tuple[str, ...], words: str) -> None:
    outcome = hybridge(capfd, "run", artifact, *options)
    assert outcome.code == 2 and not outcome.out and words in outcome.error


def test_no_artifact(capfd: Capture, tmp_path: Path) -> None:
    assert "nothing-here" in hybridge(capfd, "run", tmp_path / "nothing-here", "--prompt", "x").error
    assert hybridge(capfd, "run", tmp_path, "--prompt", "x").code == 2
