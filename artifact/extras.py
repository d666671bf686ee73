"""Install commands for optional packages."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def install_command(extra: str, root: Path = _ROOT) -> str:
    """The pip command that adds the distribution's ``extra`` to what is installed.

    From a checkout the command names the checkout's folder ("." inside it). For an installed wheel it names the
    distribution, so that pip only adds the packages of the extra.
    """
    if not (root / "pyproject.toml").is_file():
        return f"pip install 'hybridge[{extra}]'"
    where = "." if Path.cwd() == root else root
    return f"pip install --editable '{where}[{extra}]'"
