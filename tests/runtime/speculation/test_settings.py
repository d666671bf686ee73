"""Settings refuse what cannot be meant."""

import pytest

from hybridge.artifact.errors import SettingError
from hybridge.runtime.speculation import NgramDrafter, SpeculationMetrics, SpeculationSettings, StepCost


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tokens": 0}, "tokens: expected an integer of at least 1, found 0"),
        ({"shortest": True}, "shortest: expected an integer"),
        ({"shortest": 5}, "longest: expected at least 5 .shortest., found 4"),
        ({"drafter": "oracle"}, "drafter: expected 'ngram', 'mtp', a DraftModel or a Drafter, found 'oracle'"),
        ({"mode": "rewind"}, "mode: expected 'auto', 'replay' or 'snapshot', found 'rewind'"),
        ({"draft_token_cost": 2.0}, "draft_token_cost: expected a share"),
    ],
)
def test_bad_values_are_refused(bad: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        SpeculationSettings(**bad)


def test_a_request_may_ask_for_fewer() -> None:
    settings = SpeculationSettings(tokens=3, adaptive=False)
    assert [settings.make_count(requested, StepCost()).choose() for requested in (None, 0, 2, 9)] == [3, 0, 2, 3]


def test_a_drafter_may_be_given() -> None:
    drafter = NgramDrafter(1, 1)
    assert SpeculationSettings(drafter=drafter).make_drafter() is drafter
    assert isinstance(SpeculationSettings().make_drafter(), NgramDrafter)


def test_metrics_count_rows_and_draft_tokens() -> None:
    metrics = SpeculationMetrics()
    assert metrics.acceptance is None and metrics.tokens_per_row is None
    for proposed, accepted in ((4, 3), (0, 0), (4, 1)):
        metrics.observe(proposed, accepted)
    assert metrics.acceptance == 0.5 and metrics.tokens_per_row == 1 + 4 / 3
    assert metrics.chosen == {4: 2, 0: 1}
