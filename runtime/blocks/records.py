"""Whether the records of sequences and their memory agree with each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from hybridge.artifact.errors import RequestError

# What requests are told that an interrupt has ended.
INTERRUPTED = "the step was interrupted"

P = ParamSpec("P")
T = TypeVar("T")


class Records:
    """torn: the exception that stopped a change half way, such as an interrupt; None if there was none.

    Counts and owners may then disagree, so that no record can be trusted: the serving loop empties all of them, and
    sets it to None.
    """

    torn: BaseException | None = None

    def tear(self, error: BaseException) -> None:
        """``error`` stopped a change half way. Only the first is kept: later ones may follow from it."""
        if self.torn is None:
            self.torn = error


class HasRecords(Protocol):
    """An object whose methods change the records."""

    records: Records


S = TypeVar("S", bound=HasRecords)


def changes(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """For a method that changes the records: if it raises, they are torn.

    Not by a RequestError, which comes before the first change.
    """

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
