"""Rates of clients, the wait for a row, and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.artifact.errors import SettingError
from hybridge.cli.main import run_command
from hybridge.runtime.scheduler.wait_estimate import steps_until_free_row
from hybridge.serve.api_keys import Client
from hybridge.serve.config_file import read_config_file
from hybridge.serve.errors import ApiError
from hybridge.serve.quotas import Quotas
from hybridge.serve.rate_limits import RateLimits
from hybridge.serve.server import HttpServer
from hybridge.serve.settings import ModelSettings, ServeSettings


@pytest.mark.parametrize(
    ("running", "waiting", "rows", "steps"),
    [
        ([], [], 2, 0),
        ([9], [], 2, 0),
        ([9, 4], [], 2, 4),
        ([9, 4], [3], 2, 7),
        ([9, 4], [3, 8], 2, 9),
        ([9, 4], [3, 8, 1], 2, 10),
        ([5], [5, 5], 1, 15),
    ],
)
def test_a_request_waits_for_the_first_free_row(running: list[int], waiting: list[int], rows: int, steps: int) -> None:
    assert steps_until_free_row(running, waiting, rows) == steps


def test_requests_and_tokens_per_minute() -> None:
    now = [0.0]
    limits = RateLimits(2, 100, lambda: now[0])

    def refused() -> int | None:
        try:
            limits.take_request("ann")
        except ApiError as error:
            assert error.status_code == 429
            return error.retry_after
        return None

    assert [refused() for _ in range(3)] == [None, None, 30]
    limits.take_request("bob")
    now[0] = 30
    limits.settle_tokens("ann", 0, 150)
    assert refused() == 31  # from -50 to 1 at 100 a minute: 30.6 s
    now[0] = 61
    assert refused() is None
    now[0] = 1000
    assert [refused() for _ in range(3)] == [None, None, 30]


def test_requests_at_the_same_time_cannot_exceed_the_tokens_of_a_minute() -> None:
    now = [0.0]
    limits = RateLimits(None, 100, lambda: now[0])

    def refused(most: int) -> int | None:
        with pytest.raises(ApiError, match="at most 100 tokens of prompts and answers per minute") as found:
            limits.reserve_tokens("ann", most)
        return found.value.retry_after

    assert limits.reserve_tokens("ann", 60) == 60
    assert refused(70) == 18  # 30 more tokens
    assert limits.reserve_tokens("bob", 1000) == 100
    limits.settle_tokens("ann", 60, 10)
    assert limits.reserve_tokens("ann", 70) == 70
    limits.settle_tokens("ann", 70, 0)
    limits.settle_tokens("bob", 100, 400)
    now[0] = 60
    assert limits.reserve_tokens("ann", 1000) == 100
    with pytest.raises(ApiError):
        limits.take_request("bob")


def test_tokens_per_day() -> None:
    now = [86_400 * 9 + 80_000.0]
    quotas = Quotas(100, lambda: now[0])
    ann, bob = Client("ann", "a"), Client("bob", "b", 300)

    def refused(client: Client) -> int | None:
        try:
            quotas.check(client)
        except ApiError as error:
            assert (error.status_code, error.code) == (429, "insufficient_quota")
            return error.retry_after
        return None

    for client in (ann, bob):
        quotas.settle(client, None, 99)
        assert refused(client) is None
        quotas.settle(client, None, 1)
    assert (refused(ann), refused(bob)) == (6_400, None)
    quotas.settle(bob, None, 200)
    assert refused(bob) == 6_400
    now[0] += 6_400
    assert (refused(ann), refused(bob)) == (None, None)


def test_requests_at_the_same_time_cannot_exceed_a_quota() -> None:
    now = [86_400 * 9 + 80_000.0]
    quotas, ann = Quotas(100, lambda: now[0]), Client("ann", "a")
    first = quotas.reserve(ann, 60)
    with pytest.raises(ApiError, match="of 100, found up to 41: lower max_tokens") as found:
        quotas.reserve(ann, 41)
    assert (found.value.status_code, found.value.retry_after) == (429, 6_400)
    second = quotas.reserve(ann, 40)
    quotas.settle(ann, first, 10)
    third = quotas.reserve(ann, 50)
    quotas.settle(ann, third, 0)
    now[0] += 6_400  # the second request ends on the next day, whose quota it uses
    quotas.settle(ann, second, 30)
    quotas.reserve(ann, 70)
    with pytest.raises(ApiError):
        quotas.check(ann)


def test_without_limits_nothing_is_refused() -> None:
    limits = RateLimits(None, None)
    for _ in range(1000):
        limits.take_request("ann")
        assert limits.reserve_tokens("ann", 10**9) == 0
        limits.settle_tokens("ann", 0, 10**9)


def test_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        'port = 9\nlog_prompts = true\n[models.small]\npath = "x"\npreload = true\n[models.big]\npath = "/y"\n'
    )
    values, models = read_config_file(file)
    assert values == {"port": 9, "log_prompts": True}
    assert models == [ModelSettings("small", tmp_path / "x", preload=True), ModelSettings("big", Path("/y"))]


@pytest.mark.parametrize(
    "text",
    [
        "port = ",
        'port = "9"',
        "port = true",
        "nothing = 1",
        'session_folder = "a\\u0000"',
        "models = 1",
        "[models]\nx = 1",
        "[models.x]\nengine = 'torch'",
        "[models.x]\npath = 1",
        "[models.x]\npath = 'x'\nnothing = 1",
        "[models.x]\npath = 'x'\nengine = 'nothing'",
        "[models.x]\npath = 'x'\nmemory_bytes = 0",
        "[models.'']\npath = 'x'",
    ],
)
def test_bad_configurations(tmp_path: Path, text: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(SettingError):
        values, _ = read_config_file(file)
        ServeSettings(**values)


@pytest.mark.parametrize("host", ["a" * 70 + ".com", "a\0", "\u2603.invalid"])
def test_a_host_that_is_no_address_of_this_machine(artifact: Path, host: str) -> None:
    with pytest.raises(SettingError, match="host: expected an address of this machine, found"):
        HttpServer(ServeSettings(host=host), [ModelSettings("demo", artifact)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "OUT"),
        (["nowhere"], "nowhere"),
        (["--model", "x"], "NAME=OUT"),
        (["--port", "70000", "nowhere"], "--port"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--api-key-file", "nowhere", "nowhere"], "nowhere"),
        (["--engine", "nothing", "nowhere"], "engine"),
    ],
)
def test_commands_that_serve_nothing(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error and not list(tmp_path.iterdir())
