"""The page at /: what it loads, what it shows of the memory, and, in a browser, a chat."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridge.serve.api_keys import ApiKeys
from hybridge.serve.settings import ModelSettings
from tests.serve.running import Running, running

KEY = "page-test-key"
FOLDER = Path(__file__).parents[2] / "hybridge/serve/page"


def test_the_page_loads_its_own_files_alone(served: Running) -> None:
    page = served.client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    links = re.findall(r'(?:href|src)="(page/[^"]+)"', page.text)
    scripts = "".join(served.client.get(f"/{link}").text for link in links)
    links += [f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', scripts)]
    assert {f"page/{path.name}" for path in FOLDER.iterdir()} == {*links, "page/index.html"}
    for link in links:
        found = served.client.get(f"/{link}")
        assert found.status_code == 200 and found.text == (FOLDER / Path(link).name).read_text()
    assert served.client.get("/page/..%2Fapp.py").status_code == 404
    # Each element that the scripts ask for is in the page.
    script = "".join(path.read_text() for path in FOLDER.glob("*.js"))
    names = {*re.findall(r'element\("([a-z-]+)"\)', script)}
    assert len(names) > 10 and all(f'id="{name}"' in page.text for name in names)


def test_memory(served: Running, demo: ModelSettings, tmp_path: Path) -> None:
    served.post("/v1/completions", prompt="The sea of the page", max_tokens=3, temperature=0)
    view = served.client.get("/memory/demo").json()
    assert view["loaded"] and view["slots"]["running"] == 0 < view["slots"]["cached"] == sum(
        node["has_state"] for node in view["nodes"]
    )
    assert all(
        sum(view[pool][name] for name in ("running", "cached", "free")) == view[pool]["total"]
        for pool in ("blocks", "slots")
    )
    assert served.client.get("/memory/other").status_code == 404
    assert not served.lines("request") or all("memory" not in line["path"] for line in served.lines("request"))


@pytest.mark.slow
def test_clients_do_not_see_each_other(demo: ModelSettings, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    with running([demo], ApiKeys.from_file(keys)) as found:
        assert found.client.get("/").status_code == 200
        assert found.client.get("/memory/demo").status_code == 401
        view = found.client.get("/memory/demo", headers={"Authorization": f"Bearer {KEY}"}).json()
        assert view["nodes"] is None and view["sequences"] == [] and view["blocks"]["total"] > 0


@pytest.fixture
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as opened:
        found = opened.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.slow
def test_a_chat_in_a_browser(browser: Any, demo: ModelSettings, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    with running([demo], ApiKeys.from_file(keys)) as found:
        page = browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(str(found.client.base_url))
        page.get_by_text("This server needs an API key.").wait_for()
        page.get_by_label("API key").fill(KEY)
        page.get_by_label("API key").press("Enter")
        page.wait_for_selector("#model option", state="attached")
        page.locator("summary", has_text="Sampling").click()
        page.get_by_label("Maximum tokens").fill("12")
        page.get_by_label("Temperature").fill("0")
        answers = []
        for text in ("What is the sea?", "<b>And the sky?</b>"):
            page.get_by_label("Message", exact=True).fill(text)
            page.keyboard.press("Enter")
            page.wait_for_selector("#send:enabled")
            answers.append(page.locator("#conversation li").last.inner_text())
        # Text of messages is never markup.
        assert page.locator("#conversation b").count() == 0 and "<b>And" in page.locator("#conversation").inner_text()
        messages = [{"role": "user", "content": "What is the sea?"}]
        expected = found.client.post(
            "/v1/chat/completions",
            json={"model": "demo", "messages": messages, "max_tokens": 12, "temperature": 0},
            headers={"Authorization": f"Bearer {KEY}"},
        ).json()
        assert answers[0].removeprefix("Model").strip() == expected["choices"][0]["message"]["content"].strip()
        assert "from the cache" in page.locator("#status").inner_text()
        page.get_by_text("free").first.wait_for()
        assert page.locator("#tree-text").inner_text().startswith("Not shown: clients have keys")
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.get_by_label("Maximum tokens").fill("400")
        page.get_by_label("Message", exact=True).fill("On")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped.").wait_for()
        page.get_by_role("button", name="New chat").click()
        assert page.locator("#conversation li").count() == 0 and not problems
