"""The document of what verify finds: its command."""

from __future__ import annotations

import pytest

from benchmarks import verify


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--json", 2)])
def test_nothing_is_verified_for_an_argument(argument: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "verified", lambda *_: pytest.fail("a checkpoint was verified"))
    monkeypatch.setattr(verify, "write_large", lambda *_: pytest.fail("a checkpoint was written"))
    with pytest.raises(SystemExit) as end:
        verify.main([argument])
    assert end.value.code == code
