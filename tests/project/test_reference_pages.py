"""The reference pages that follow from the code."""

from __future__ import annotations

import hybridge
from tools.reference_pages import CLI_PAGE, api_page, cli_page


def test_the_page_of_commands_is_up_to_date() -> None:
    assert CLI_PAGE.read_text(encoding="utf-8") == cli_page(), "run make docs"


def test_the_page_of_functions_has_every_public_name() -> None:
    page = api_page()
    names = [name for name in hybridge.__all__ if callable(getattr(hybridge, name))]
    assert not [name for name in names if f"\n## hybridge.{name}\n" not in page]
    assert "\n## hybridge.LLM.generate\n" in page and "max_new_tokens" in page
