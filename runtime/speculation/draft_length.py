"""Draft length: how many tokens to propose, from the acceptance so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hybridge.runtime.speculation.probes import Probes

# Assumed of a sequence without history: the usual share of so many tokens accepted, two of three if nothing is known.
USUAL_ACCEPTANCE, _PRIOR_TRIED = 2 / 3, 3.0
# The same where the drafter tells what it would have proposed, and how many more tokens are assumed to be rejected:
# such a sequence learns its acceptance without drafting, so that a careful start costs little.
_PRIOR_FORESEEN, _DOUBT = 6.0, 1.0
# Weight of a step in the one after it: about the last 20 steps count.
_DECAY = 0.95
# Where draft tokens do not pay, steps until the count is chosen again, at first.
_EVALUATED = 4


def expected_tokens(acceptance: float, most: int) -> list[float]:
    """Tokens that a step with 0, 1, ... ``most`` draft tokens gives on average, its own last one included.

    1 + a + a^2 + ... + a^count for independent acceptance a. Source: Leviathan, Kalman, Matias 2023, equation 1.
    """
    found = [1.0]
    for _ in range(most):
        found.append(1.0 + acceptance * found[-1])
    return found


class DraftLength:
    """Chooses the count, 0 to ``most``, that gives the most tokens for the time of a step.

    ``cost`` is the share of a step that each draft token adds, so that the time is 1 + cost * count, or a function of
    the count and the rows of the step. The acceptance is measured for this sequence, with less weight for older steps:
    accepted / tried, where those tried are the accepted tokens and the first rejected one, and those that a drafter
    would have proposed. Ties go to the shorter. Where no count pays, the best of 1 and more is tried again now and then
    (``probes``). foresees: the drafter tells what it would have proposed (``foresee``), so that the count is chosen
    again before that. usual: the acceptance to begin with.
    """

    def __init__(
        self,
        most: int,
        cost: float | Callable[[int, int], float],
        adaptive: bool = True,
        foresees: bool = False,
        usual: float = USUAL_ACCEPTANCE,
    ) -> None:
        self._most, self._cost, self._adaptive = most, cost, adaptive
        self._tried, self._doubt = (_PRIOR_FORESEEN, _DOUBT) if foresees else (_PRIOR_TRIED, 0.0)
        self._accepted = self._tried * usual
        self.probes = Probes(_EVALUATED) if foresees else Probes()

    @property
    def acceptance(self) -> float:
        """The estimated probability that a draft token is accepted after all before it were."""
        return self._accepted / self._tried

    def choose(self, rows: int = 1) -> int:
        """Number of draft tokens for the next step, in which ``rows`` rows decode."""
        if not self._adaptive or not self._most:
            return self._most
        if self.probes.waits():
            return 0
        cost, best, most, loss = self._cost, 1, 0.0, 0.0
        acceptance = self._accepted / (self._tried + self._doubt)
        for count, tokens in enumerate(expected_tokens(acceptance, self._most)[1:], 1):
            time = cost(count, rows) if callable(cost) else 1.0 + cost * count
            if tokens / time > most:
                best, most, loss = count, tokens / time, time - tokens
        return best if self.probes.tries(loss) else 0

    def foresee(self, right: Iterable[bool]) -> None:
        """Each token that a drafter would have proposed, had it been asked, counts as a step with one draft token."""
        for each in right:
            self.observe(1, int(each))

    def observe(self, proposed: int, accepted: int) -> None:
        """A step accepted ``accepted`` of ``proposed`` draft tokens; steps without draft tokens are ignored."""
        if proposed:
            self._accepted = _DECAY * self._accepted + accepted
            self._tried = _DECAY * self._tried + accepted + (accepted < proposed)
