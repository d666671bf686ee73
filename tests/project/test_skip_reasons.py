"""A skip that does not say why fails the run; one that does is printed and passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_REASON = """
@pytest.mark.skip
def test_mark(): pass
def test_call(): pytest.skip()
def test_blank(): pytest.skip(' ')
def test_good(): pass
"""
WITH_REASON = """
@pytest.mark.skip(reason='because of mark')
def test_mark(): pass
@pytest.mark.skipif(True, reason='because of skipif')
def test_skipif(): pass
def test_call(): pytest.skip('because of call')
@pytest.mark.xfail(reason='because of xfail')
def test_xfail(): assert False
"""


def run_pytest(folder: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    for index, source in enumerate(sources):
        (folder / f"test_sample_{index}.py").write_text("import pytest\n" + source, encoding="utf-8")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import pytest; "
        "sys.exit(pytest.main(['-ra', '-p', 'tests.support.skip_reasons', '-p', 'no:cacheprovider',"
        " '--continue-on-collection-errors']))"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)


def test_skip_without_reason_fails(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, WITHOUT_REASON, "pytest.skip('', allow_module_level=True)\n")
    assert result.returncode != 0
    assert "2 failed, 1 passed, 2 errors" in result.stdout, result.stdout
    assert result.stdout.count(": skipped without a reason") >= 4


def test_reason_is_printed(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, WITH_REASON, "pytest.skip('because of module', allow_module_level=True)\n")
    assert result.returncode == 0, result.stdout
    for reason in ("mark", "skipif", "call", "xfail", "module"):
        assert f"because of {reason}" in result.stdout
