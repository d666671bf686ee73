"""Scenarios of a busy server: concurrent requests, cached prefixes, edited conversations, disconnecting clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

from hybridge.conformance.client import Answer, CompletionsClient, ServerError
from hybridge.conformance.comparison import FAILED, Finding, compared
from hybridge.conformance.options import ConformanceOptions
from hybridge.conformance.prompts import PromptSource

ALONE = "alone"


class Scenarios:
    """All scenarios on one server. ``run`` gives their findings in order.

    Each answer is compared with that of the same prompt sent alone to the idle server. Where the server has cache
    salts, the request sent alone has its own, so that it computes the whole prompt.
    """

    def __init__(self, client: CompletionsClient, source: PromptSource, options: ConformanceOptions) -> None:
        self._client, self._source, self._options = client, source, options
        self._alone: dict[str, Answer] = {}
        self._salts = 0

    def names(self) -> list[str]:
        """The scenarios, in order."""
        sizes = [f"{size} at a time, seen" for size in self._sizes()]
        return ["again", *sizes, "new, together", "shared prefix", "continued", "edited", "4 answers", "disconnects"]

    def run(self) -> Iterator[list[Finding]]:
        """The findings of each scenario of ``names``."""
        prompts = self._usable(self._source.prompts(self._options.prompts))
        yield self._checked("again", prompts, together=1)
        for size in self._sizes():
            many = list(islice(cycle(prompts), max(size, len(prompts))))
            yield self._checked(f"{size} at a time, seen", many, together=size)
        yield self._checked("new, together", list(self._source.prompts(len(prompts))))
        yield self._checked("shared prefix", self._sharing(prompts))
        yield self._checked("continued", [p + self._alone[p].text + self._source.words(5) for p in prompts])
        yield self._checked("edited", [self._edited(prompt) for prompt in prompts])
        yield self._checked("4 answers", prompts, answers=4)
        yield self._with_disconnects(prompts)

    def _sizes(self) -> list[int]:
        return [size for size in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if size <= self._options.batch]

    def _usable(self, prompts: Iterator[str]) -> list[str]:
        """The prompts that the server accepts, at least one; long ones may exceed its limit."""
        usable: list[str] = []
        refused: ServerError | None = None
        for prompt in prompts:
            try:
                self._answer_alone(prompt)
                usable.append(prompt)
            except ServerError as error:
                if error.status not in (400, 413, 422):
                    raise
                refused = error
        if refused is not None and not usable:
            raise refused
        return usable

    def _answer_alone(self, prompt: str) -> Answer:
        if prompt not in self._alone:
            self._salts += 1
            self._alone[prompt] = self._client.complete(prompt, salt=f"{ALONE} {self._salts}")[0]
        return self._alone[prompt]

    def _checked(
        self, name: str, prompts: Sequence[str], together: int | None = None, answers: int = 1
    ) -> list[Finding]:
        """Send all prompts, ``together`` at a time, and compare."""
        replies = self._together(lambda prompt: self._client.complete(prompt, answers), prompts, together)
        return [
            finding
            for prompt, found in zip(prompts, replies, strict=True)
            for finding in self._compare(name, prompt, found, answers)
        ]

    def _compare(self, name: str, prompt: str, found: list[Answer] | ServerError, answers: int) -> list[Finding]:
        if isinstance(found, ServerError):
            return [Finding(name, FAILED, prompt, found=str(found))]
        if len(found) != answers:
            return [Finding(name, FAILED, prompt, found=f"expected {answers} answers, found {len(found)}")]
        try:
            alone = self._answer_alone(prompt)
        except ServerError as error:
            return [Finding(name, FAILED, prompt, found=str(error))]
        return [compared(name, prompt, alone, answer, self._options.tie) for answer in found]

    def _together(
        self, ask: Callable[[str], list[Answer]], prompts: Sequence[str], together: int | None = None
    ) -> list[list[Answer] | ServerError]:
        def reply(prompt: str) -> list[Answer] | ServerError:
            try:
                return ask(prompt)
            except ServerError as error:
                return error

        with ThreadPoolExecutor(together or self._options.batch) as pool:
            return list(pool.map(reply, prompts))

    def _sharing(self, prompts: Sequence[str]) -> list[str]:
        """Prompts that share prefixes of different lengths with earlier ones, cut within words."""
        return [
            prompt[: len(prompt) * (1 + index % 7) // 8] + self._source.words(3 + index % 5)
            for index, prompt in enumerate(prompts)
        ]

    def _edited(self, prompt: str) -> str:
        """A conversation whose last answer was changed in the middle, and then continued."""
        answer = self._alone[prompt].text
        return prompt + answer[: len(answer) // 2] + self._source.words(2) + answer[len(answer) // 2 :]

    def _with_disconnects(self, prompts: Sequence[str]) -> list[Finding]:
        """Requests while other clients begin streams and disconnect."""
        abandoned = list(self._source.prompts(len(prompts)))

        def ask(prompt: str) -> list[Answer]:
            if prompt in to_abandon:
                self._client.abandon(prompt)
                return []
            return self._client.complete(prompt)

        to_abandon = set(abandoned)
        mixed = [each for pair in zip(abandoned, prompts, strict=True) for each in pair]
        replies = dict(zip(mixed, self._together(ask, mixed), strict=True))
        name = "disconnects"
        failed = [Finding(name, FAILED, each, found=str(replies[each])) for each in abandoned if replies[each]]
        return failed + [finding for prompt in prompts for finding in self._compare(name, prompt, replies[prompt], 1)]
