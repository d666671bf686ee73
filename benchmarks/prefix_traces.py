"""Requests with shared prefixes, as serving systems see them: shared system prompts, examples, and chats."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

VOCAB = 32_000


# A user's messages, turn by turn; a turn's prompt is the whole conversation so far.
Conversation = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Trace:
    """``order`` names the conversation of each request, in the order of arrival; ``at_a_time`` run together.

    new_tokens: of each answer.
    """

    name: str
    conversations: tuple[Conversation, ...]
    order: tuple[int, ...]
    new_tokens: int
    at_a_time: int

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        said = (sum(map(len, each)) + len(each) * self.new_tokens for each in self.conversations)
        return max(said)


@dataclass(frozen=True)
class Groups:
    """``groups`` groups of ``each`` prompts of ``shared`` common and ``own`` other tokens, shuffled.

    varied: every group shares a number of tokens of its own, from half of ``shared`` to all of it.
    """

    name: str
    groups: int
    each: int
    shared: int
    own: int
    new_tokens: int
    at_a_time: int
    varied: bool = False

    def trace(self, seed: int = 0) -> Trace:
        """The trace, the same for the same seed."""
        rng = np.random.default_rng(seed)
        lengths = (
            rng.integers(self.shared // 2, self.shared, self.groups) if self.varied else [self.shared] * self.groups
        )
        begins = [_tokens(rng, int(length)) for length in lengths]
        order = rng.permutation(np.repeat(np.arange(self.groups), self.each))
        conversations = tuple(((*begins[group], *_tokens(rng, self.own)),) for group in order)
        return Trace(self.name, conversations, tuple(range(len(order))), self.new_tokens, self.at_a_time)

    def scaled(self, factor: int, new_tokens: int, groups: int | None = None) -> Groups:
        """The same with ``factor`` times shorter prompts, of fewer groups."""
        shared, own = self.shared // factor, max(1, self.own // factor)
        return replace(self, groups=groups or self.groups, shared=shared, own=own, new_tokens=new_tokens, at_a_time=2)


@dataclass(frozen=True)
class Chats:
    """``chats`` chats of ``turns`` turns that take turns; ``first`` and ``later`` tokens are what the user says."""

    name: str
    chats: int
    turns: int
    first: int
    later: int
    new_tokens: int
    at_a_time: int

    def trace(self, seed: int = 0) -> Trace:
        """The trace, the same for the same seed."""
        rng = np.random.default_rng(seed)
        said = [
            tuple(_tokens(rng, self.later if turn else self.first) for turn in range(self.turns))
            for _ in range(self.chats)
        ]
        order = np.concatenate([rng.permutation(self.chats) for _ in range(self.turns)])
        return Trace(self.name, tuple(said), tuple(order.tolist()), self.new_tokens, self.at_a_time)

    def scaled(self, factor: int, new_tokens: int) -> Chats:
        """The same with ``factor`` times less said."""
        return replace(self, first=self.first // factor, later=self.later // factor, new_tokens=new_tokens, at_a_time=2)


LONG = Groups("50 x 10: 10,240 + 256", 50, 10, 10_240, 256, 128, 5)
SHORT = Groups("8 x 32: 2,048 + 64", 8, 32, 2_048, 64, 16, 4)
ALIGNED = Groups("8 x 64: 1,600 + 600", 8, 64, 1_600, 600, 16, 4)
UNALIGNED = Groups("8 x 64: 1,500 + 700", 8, 64, 1_500, 700, 16, 4)
VARIED = Groups("8 x 64: 1,100 to 2,200 + 600", 8, 64, 2_200, 600, 16, 4, varied=True)
TALK = Chats("8 chats x 3 turns", 8, 3, 1_000, 200, 128, 4)


def _tokens(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    return tuple(rng.integers(3, VOCAB, count).tolist())
