"""Requests that need one grammar compile it once."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hybridge.serve.grammars import Grammars


def test_requests_that_wait_for_a_grammar_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    class Matcher(str):
        def deep_copy(self) -> Matcher:
            return self

    def compile_slowly(self: Grammars, grammar: str) -> Matcher:
        time.sleep(0.01)
        compiled.append(grammar)
        return Matcher(grammar)

    monkeypatch.setattr(Grammars, "_compile", compile_slowly)
    grammars = Grammars(cast(Any, SimpleNamespace(config=SimpleNamespace(vocab_size=8), eos_token_ids=(1,))))

    async def ask() -> None:
        await asyncio.gather(*(grammars.allowed_tokens(name) for name in "xyxxy"))

    with closing(grammars):
        asyncio.run(ask())
    assert compiled == ["x", "y"]
