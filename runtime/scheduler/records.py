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

    Nothing is known of them then: the serving loop empties them all, and says so by None.
    """

    torn: BaseException | None = None

    def tear(self, error: BaseException) -> None:
        """``error`` has cut a change short, unless they are torn already: what follows from the first cause is none."""
        if self.torn is None:
            self.torn = error


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
            self.records.tear(error)
            raise

    return change
