"""Whether the records of sequences and their memory agree with each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from hybridge.artifact.errors import RequestError

# Why requests end that were in the middle of something.
INTERRUPTED = "the step was interrupted"

P = ParamSpec("P")
T = TypeVar("T")


class Records:
    """torn: what has cut a change short, such as an interrupt, so that counts and owners may disagree; or None.

    Nothing is known of them then: ``Scheduler.start_over`` empties them all.
    """

    torn: BaseException | None = None


class HasRecords(Protocol):
    """What changes them."""

    records: Records


S = TypeVar("S", bound=HasRecords)


def changes(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """``method`` changes the records as a whole; a RequestError comes before the first change."""

    @wraps(method)
    def change(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except RequestError:
            raise
        except BaseException as error:
            self.records.torn = error
            raise

    return change
