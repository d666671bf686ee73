"""All comparisons of one engine: of the whole model, then layer by layer where rounding grew from layer to layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.progress import Progress
from hybridge.verification.compare import compared, compared_on_own_inputs, relative_error
from hybridge.verification.expected import Expected
from hybridge.verification.observation import Observation
from hybridge.verification.report import Comparison

# Memory for results that are compared again. A wrong artifact has more of them, and stays wrong.
_MOST_BYTES = 2**30
# The values of the graph that observations show, by module, as ``InnerValues`` has them; None: no value.
Products = Mapping[str, str] | None


@dataclass(frozen=True)
class EngineRuns:
    """All runs of the engine ``name``.

    observations: those of one pass over all scenarios, which shows the given values. shown: what a first pass shows.
    inner: of an engine that rounds, the inputs of routers, which a second pass shows with those of layers; None for
    others.
    """

    name: str
    observations: Callable[[Products], Iterator[Observation]]
    expected: Expected
    config: RuntimeConfig
    tolerance: float
    shown: Products
    inner: Products
    progress: Progress

    def comparisons(self) -> Iterator[Comparison]:
        """All comparisons of one observation after another.

        Results beyond the tolerance are compared again in a second pass, for the artifact's own inputs. They stay
        failed unless the second pass, which may run other kernels, has the same results within the tolerance.
        """
        failed, room = dict[int, tuple[Observation, list[Comparison]]](), _MOST_BYTES
        for number, observed in enumerate(self.observations(self.shown)):
            found = list(compared(self.name, observed, self.expected, self.config, self.tolerance))
            size = _nbytes(observed)
            if self.inner is None or all(c.passed for c in found) or size > room:
                yield from found
            else:
                failed[number], room = (observed, found), room - size
            self.progress.advance()
        for number, observed in enumerate(self.observations(self.inner) if failed else ()):
            if number in failed:
                first, found = failed.pop(number)
                yield from self._on_own_inputs(first, observed) or found
                self.progress.advance()

    def _on_own_inputs(self, first: Observation, second: Observation) -> list[Comparison]:
        """The comparisons of ``second``; none where its results are not those of ``first``."""
        results = ({**seen.states, "": seen.logits} for seen in (first, second))
        before, after = results
        if any(not relative_error(after[name], value) <= self.tolerance for name, value in before.items()):
            return []
        return list(compared_on_own_inputs(self.name, second, self.expected, self.config, self.tolerance))


def _nbytes(observed: Observation) -> int:
    return sum(array.nbytes for array in (observed.logits, *observed.states.values(), *observed.hidden))
