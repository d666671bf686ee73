"""The kinds of runs that a step of a paged artifact becomes."""

from __future__ import annotations

from enum import Enum


class PagedForm(Enum):
    """The shapes that a session is specialised for."""

    ONE_TOKEN = "one token of one row"
    TOKEN_PER_ROW = "one token of each row"
    ONE_ROW = "any number of tokens of one row, or where it can of several"
    RAGGED = "a few tokens of each row, of some rows more than of others"
