"""How many tokens to propose, from what became of those before."""

from __future__ import annotations

from collections.abc import Callable

# What a sequence without a history is taken to have: two tokens of three accepted.
_PRIOR_ACCEPTED, _PRIOR_TRIED = 2.0, 3.0
# Weight of a step in the one after it: about the last 20 steps count.
_DECAY = 0.95
# Where nothing is worth its cost, one token is proposed each so many steps.
_PROBE_STEPS = 16


def expected_tokens(acceptance: float, most: int) -> list[float]:
    """Tokens that a step with 0, 1, ... ``most`` candidates gives on average, its own last one included.

    1 + a + a^2 + ... + a^count for independent acceptance a. Source: Leviathan, Kalman, Matias 2023, equation 1.
    """
    found = [1.0]
    for _ in range(most):
        found.append(1.0 + acceptance * found[-1])
    return found


class CandidateCount:
    """Chooses the count, 0 to ``most``, that gives the most tokens for the time of a step.

    ``cost`` is the share of a step that one more candidate takes, so that the time is 1 + cost * count; or it says the
    time for a count and the rows of the step. The acceptance is that of this sequence alone, older steps counting less:
    accepted / tried, where the candidates tried are those accepted and the first that was not. Among equals the fewer.
    """

    def __init__(self, most: int, cost: float | Callable[[int, int], float], adaptive: bool = True) -> None:
        self._most, self._cost, self._adaptive = most, cost, adaptive
        self._accepted, self._tried = _PRIOR_ACCEPTED, _PRIOR_TRIED
        self._idle = 0

    @property
    def acceptance(self) -> float:
        """The estimated probability that a candidate is accepted after all before it were."""
        return self._accepted / self._tried

    def choose(self, rows: int = 1) -> int:
        """Candidates for the next step, in which so many ``rows`` decode."""
        if not self._adaptive or not self._most:
            return self._most
        cost, best, most = self._cost, 0, 0.0
        for count, tokens in enumerate(expected_tokens(self.acceptance, self._most)):
            worth = tokens / (cost(count, rows) if callable(cost) else 1.0 + cost * count)
            if worth > most:
                best, most = count, worth
        self._idle = 0 if best else self._idle + 1
        return 1 if self._idle and self._idle % _PROBE_STEPS == 0 else best

    def observe(self, proposed: int, accepted: int) -> None:
        """A step accepted ``accepted`` of ``proposed`` candidates; one without candidates teaches nothing."""
        if proposed:
            self._accepted = _DECAY * self._accepted + accepted
            self._tried = _DECAY * self._tried + accepted + (accepted < proposed)
