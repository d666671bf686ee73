"""The order in which requests are served."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from hybridge.artifact.settings import checked_int


class Policy(ABC):
    """Gives each request a rank once, when it arrives, so that none can be overtaken forever."""

    @abstractmethod
    def rank(self, priority: int, arrival: int, step: int) -> int:
        """Rank of the ``arrival``-th request, which arrives at step ``step``; lower is sooner."""

    @abstractmethod
    def preempts(self, waiting_priority: int, running_priority: int) -> bool:
        """Whether a waiting request may take the place of a running one of higher rank."""


@dataclass(frozen=True)
class Fcfs(Policy):
    """First come, first served; priorities have no effect."""

    def rank(self, priority: int, arrival: int, step: int) -> int:
        return arrival

    def preempts(self, waiting_priority: int, running_priority: int) -> bool:
        return False


@dataclass(frozen=True)
class Priority(Policy):
    """Lower priority values first; they preempt running requests that are less urgent.

    patience: steps of waiting that equal one level of priority. A request that came ``patience`` steps earlier than one
    a level more urgent goes before it, so that none starves under a stream of urgent ones.
    """

    patience: int = 1000

    def __post_init__(self) -> None:
        checked_int("patience", self.patience)

    def rank(self, priority: int, arrival: int, step: int) -> int:
        return step + priority * self.patience

    def preempts(self, waiting_priority: int, running_priority: int) -> bool:
        return waiting_priority < running_priority
