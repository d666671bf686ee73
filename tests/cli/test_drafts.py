"""hybridge run with drafts: the same text, and what happened to the draft tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.cli.drafts import draft_summary, parsed_mode
from hybridge.runtime.speculation import SpeculationMetrics
from tests.cli.command import hybridge

Capture = pytest.CaptureFixture[str]
RUN = ("--prompt", "one two three one two three one two", "--max-new-tokens", "12", "--json")


def test_the_text_is_that_of_plain_decoding(capfd: Capture, paged: Path) -> None:
    plain = hybridge(capfd, "run", paged, *RUN)
    assert plain.code == 0 and "speculation" not in plain.document
    modes = ("--speculative-mode", "causal_conv1d=snapshot, update_ssm_state=replay")
    for options in (("--draft", "ngram", "--draft-tokens", "2", *modes), ("--draft", paged)):
        shown = hybridge(capfd, "run", paged, *RUN, *options)
        assert shown.code == 0, shown.err
        assert shown.document["token_ids"] == plain.document["token_ids"]
        assert shown.document["speculation"]["state_bytes_per_draft_token"] > 0
        assert "[drafts: " in shown.err
    own = shown.document["speculation"]
    # The model that drafts for itself is always right.
    assert own["acceptance"] == 1.0 and set(own["rows_by_draft_tokens"]) <= {"0", "1", "2", "3", "4"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--draft-tokens", "16"), "found onnxruntime, which can roll back 16: lower tokens to 15"),
        (("--draft-tokens", "9", "--speculative-mode", "replay"), "use 'snapshot', or fewer draft tokens"),
        (("--draft-tokens", "0"), "--draft-tokens: expected an integer of at least 1, found 0"),
        (("--draft-tokens", "-1"), "--draft-tokens: expected an integer of at least 1, found -1"),
        (("--speculative-mode", "replay"), "--speculative-mode replay: expected --draft or --draft-tokens with it"),
        (("--draft", "nowhere"), "nowhere"),
        (
            ("--draft", "mtp", "--draft-sampling"),
            "--draft-sampling: expected the folder of a draft model as --draft, found mtp",
        ),
        (("--draft-tokens", "2", "--draft-sampling"), "as --draft, found none"),
        (
            ("--draft-tokens", "2", "--speculative-mode", "gated_delta_rule=replay"),
            "expected modes of the recurrent operators causal_conv1d, update_ssm_state, found 'gated_delta_rule'",
        ),
    ],
)
def test_what_cannot_be_is_refused(capfd: Capture, paged: Path, options: tuple[str, ...], words: str) -> None:
    outcome = hybridge(capfd, "run", paged, *RUN[:2], *options)
    assert outcome.code != 0 and words in outcome.error


@pytest.mark.slow
def test_a_draft_model_may_draw(capfd: Capture, paged: Path) -> None:
    """One that drafts for itself is always right then."""
    sampling = ("--temperature", "1.5", "--seed", "3", "--draft", paged, "--draft-sampling")
    shown = hybridge(capfd, "run", paged, *RUN, *sampling)
    assert shown.code == 0 and shown.document["speculation"]["acceptance"] == 1.0


def test_modes_by_operator() -> None:
    assert parsed_mode("causal_conv1d=snapshot") == {"causal_conv1d": "snapshot"}
    assert parsed_mode("a=replay, b = snapshot") == {"a": "replay", "b": "snapshot"}
    assert [parsed_mode(mode) for mode in ("auto", "replay", "snapshot")] == ["auto", "replay", "snapshot"]


@pytest.mark.parametrize(
    "mode",
    ["fast", "", "causal_conv1d", "causal_conv1d=", "=replay", "a=auto", "a=replay,", "a=replay,replay", "a=b=c"],
)
def test_modes_that_are_none(capfd: Capture, paged: Path, mode: str) -> None:
    outcome = hybridge(capfd, "run", paged, *RUN[:2], "--draft", "ngram", "--speculative-mode", mode)
    assert outcome.code == 2 and outcome.error.endswith("see hybridge run --help")
    expected = "--speculative-mode: expected auto, replay, snapshot, or one of the last two by operator such as "
    assert f"{expected}causal_conv1d=snapshot,update_ssm_state=replay, found {mode!r}" in outcome.error


def test_a_mode_is_given_once(capfd: Capture, paged: Path) -> None:
    given = "causal_conv1d=replay,causal_conv1d=snapshot"
    outcome = hybridge(capfd, "run", paged, *RUN[:2], "--draft", "ngram", "--speculative-mode", given)
    assert outcome.code == 2
    assert "--speculative-mode: expected each operator once, found causal_conv1d twice in" in outcome.error


def test_a_dense_artifact_takes_no_drafts(capfd: Capture, artifact: Path) -> None:
    outcome = hybridge(capfd, "run", artifact, *RUN[:2], "--draft", "ngram")
    assert (
        outcome.code == 2 and "--draft: the recurrent states of dense artifacts cannot be rolled back" in outcome.error
    )


def test_without_draft_tokens_there_is_no_report() -> None:
    assert draft_summary(SpeculationMetrics()) == "[drafts: none proposed]"


def test_export_says_where_draft_tokens_are_chosen(capfd: Capture, tmp_path: Path) -> None:
    outcome = hybridge(capfd, "export", tmp_path, tmp_path / "out", "--speculative-tokens", "3")
    assert outcome.code == 2 and "any artifact of layout paged" in outcome.error
    assert "hybridge run --draft-tokens N" in outcome.error and "hybridge build-engine" in outcome.error
