"""hybridge run with drafts: the same text, and what became of the candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.cli.drafts import draft_summary
from runtime.speculation import SpeculationMetrics
from tests.cli.command import hybridge

Capture = pytest.CaptureFixture[str]
RUN = ("--prompt", "one two three one two three one two", "--max-new-tokens", "12", "--json")


def test_the_text_is_that_of_plain_decoding(capfd: Capture, paged: Path) -> None:
    plain = hybridge(capfd, "run", paged, *RUN)
    assert plain.code == 0 and "speculation" not in plain.document
    kept = ("--draft-tokens", "1", "--speculative-mode", "snapshot")
    for options in (("--draft", "ngram"), ("--draft-tokens", "3"), kept, ("--draft", paged)):
        shown = hybridge(capfd, "run", paged, *RUN, *options)
        assert shown.code == 0, shown.err
        assert shown.document["token_ids"] == plain.document["token_ids"]
        assert shown.document["speculation"]["state_bytes_per_candidate"] > 0
        assert "[drafts: " in shown.err
    own = shown.document["speculation"]
    # The model that drafts for itself is always right.
    assert own["acceptance"] == 1.0 and set(own["rows_by_candidates"]) <= {"0", "1", "2"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--draft-tokens", "3", "--speculative-mode", "snapshot"), "--speculative-tokens of at least 3"),
        (("--draft-tokens", "9", "--speculative-mode", "replay"), "which does by 8: use another mode, or lower tokens"),
        (("--draft-tokens", "0"), "--draft-tokens: expected at least 1, found '0'"),
        (("--draft-tokens", "-1"), "--draft-tokens: expected at least 1, found '-1'"),
        (("--speculative-mode", "replay"), "--speculative-mode replay: expected --draft or --draft-tokens beside it"),
        (("--draft", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_is_refused(capfd: Capture, paged: Path, options: tuple[str, ...], words: str) -> None:
    outcome = hybridge(capfd, "run", paged, *RUN[:2], *options)
    assert outcome.code != 0 and words in outcome.error


def test_a_dense_artifact_takes_no_drafts(capfd: Capture, artifact: Path) -> None:
    outcome = hybridge(capfd, "run", artifact, *RUN[:2], "--draft", "ngram")
    assert outcome.code == 2 and "--draft: expected an artifact of layout paged, found dense" in outcome.error


def test_without_candidates_there_is_nothing_to_say() -> None:
    assert draft_summary(SpeculationMetrics()) == "[drafts: none was proposed]"
