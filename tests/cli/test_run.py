"""hybridge run on the shipped checkpoint."""

from __future__ import annotations

import io
import json
import shutil
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
        (("--prompt", "x", "--temperature", "-1"), "--temperature: expected a number at least 0, found -1.0"),
        (("--prompt", "x", "--top-p", "0"), "--top-p: expected"),
        (("--prompt", "x", "--max-new-tokens", "0"), "--max-new-tokens: expected an integer of at least 1, found 0"),
        (("--prompt", "x", "--repetition-penalty", "0"), "--repetition-penalty: expected"),
        (("--prompt", "x", "--stop", ""), "--stop: expected"),
        (("--prompt", "x", "--sampling", "beam"), "--sampling: expected greedy or recommended, found 'beam'"),
        (("--prompt-ids", "999999"), "--prompt-ids: expected token ids from 0 to 2047, found 999999"),
        (("--prompt", "sea " * 400), "--prompt: expected at most 300 tokens"),
        (("--chat", "sea " * 400), "--chat: expected at most 300 tokens"),
        (("--prompt", "x", "--engine", "tensorrt"), "tensorrt"),
    ],
)
def test_bad_requests(capfd: Capture, artifact: Path, options: tuple[str, ...], words: str) -> None:
    outcome = hybridge(capfd, "run", artifact, *options)
    assert outcome.code == 2 and not outcome.out and words in outcome.error


def test_more_tokens_than_fit_are_noted(capfd: Capture, artifact: Path) -> None:
    long = ("--prompt-ids", ",".join(["5"] * 296), "--max-new-tokens", "9000")
    outcome = hybridge(capfd, "run", artifact, *long, "--json")
    assert outcome.code == 0, outcome.err
    note = (
        "stopped at max_seq_len 300: a prompt of 296 tokens leaves room for 5 new ones, not for --max-new-tokens 9000"
    )
    assert outcome.document["finish_reason"] == "length" and outcome.document["limited_by"] == "max_seq_len"
    assert len(outcome.document["token_ids"]) == 5 and outcome.document["notes"][0].startswith(note)
    assert f"note: {note}" in outcome.err and "--max-seq-len" in outcome.err
    assert "note" not in hybridge(capfd, "run", artifact, *long, "--quiet").err


def test_a_requested_limit_gives_no_note(capfd: Capture, artifact: Path) -> None:
    ids = ("--prompt-ids", ",".join(["5"] * 296), "--max-new-tokens", "5")
    outcome = hybridge(capfd, "run", artifact, *ids, "--json")
    assert outcome.document["limited_by"] == "max_new_tokens" and outcome.document["notes"] == []
    text = hybridge(capfd, "run", artifact, *PROMPT, "--max-new-tokens", "4", "--json").document["text"]
    stopped = hybridge(capfd, "run", artifact, *PROMPT, "--stop", text[1:3], "--json").document
    assert stopped["finish_reason"] == "stop" and stopped["limited_by"] is None


@pytest.mark.parametrize("command", [("run", "--prompt", "x"), ("bench",), ("build-engine",)])
def test_no_artifact(capfd: Capture, checkpoint: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    (tmp_path / "engine.json").write_text('{"engine_version": 1}')
    for path, words in (
        (tmp_path / "nothing-here", "nothing-here: expected a folder written by hybridge export, found nothing"),
        (checkpoint, f"found a checkpoint: run hybridge export {checkpoint} OUT and give OUT"),
        (tmp_path, f"found a TensorRT engine: give such a folder (hybridge inspect {tmp_path} shows"),
    ):
        outcome = hybridge(capfd, name, path, *options)
        assert outcome.code == 2 and not outcome.out and words in outcome.error


@pytest.mark.parametrize("command", [("run", *PROMPT), ("bench",)])
def test_the_folder_of_another_engine_is_refused(capfd: Capture, artifact: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    outcome = hybridge(capfd, name, artifact, *options, "--engine", "onnxruntime", "--engine-folder", "mine")
    assert outcome.code == 2 and not outcome.out
    assert outcome.error.startswith("--engine-folder: expected none for the engine onnxruntime, found 'mine'")


def test_prompts_from_standard_input_and_a_file(
    capfd: Capture, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = hybridge(capfd, "run", artifact, *PROMPT, "--max-new-tokens", "4", "--json").document["token_ids"]
    (tmp_path / "prompt.txt").write_text(PROMPT[1] + "\n")
    for options in (("--prompt", "-"), ("--prompt-file", tmp_path / "prompt.txt")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PROMPT[1].encode() + b"\n")))
        found = hybridge(capfd, "run", artifact, *options, "--max-new-tokens", "4", "--json").document
        assert found["token_ids"] == expected
    (tmp_path / "prompt.txt").write_bytes(b"\xff")
    outcome = hybridge(capfd, "run", artifact, "--prompt-file", tmp_path / "prompt.txt")
    assert outcome.code == 2 and "prompt.txt: expected text in UTF-8, found the byte 0xff" in outcome.error


def test_a_system_message_reaches_the_template(capfd: Capture, artifact: Path) -> None:
    chat = ("--chat", "Hello", "--max-new-tokens", "1", "--json")
    found = hybridge(capfd, "run", artifact, *chat, "--system", "Be brief.").document["prompt_token_ids"]
    plain = hybridge(capfd, "run", artifact, *chat).document["prompt_token_ids"]
    assert len(found) > len(plain) and found[-5:] == plain[-5:]


def test_recommended_sampling_is_the_checkpoint_s(capfd: Capture, artifact: Path, tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    shutil.copytree(artifact, folder)
    fields = {"do_sample": True, "temperature": 1.7, "top_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(fields))
    options = (*PROMPT, "--max-new-tokens", "12", "--json", "--seed", "3")
    recommended = hybridge(capfd, "run", folder, *options, "--sampling", "recommended").document["token_ids"]
    same = ("--temperature", "1.7", "--top-p", "0.9")
    assert recommended == hybridge(capfd, "run", folder, *options, *same).document["token_ids"]
    greedy = hybridge(capfd, "run", folder, *options).document["token_ids"]
    assert recommended != greedy
    cold = hybridge(capfd, "run", folder, *options, "--sampling", "recommended", "--temperature", "0").document
    assert cold["token_ids"] == greedy
