"""The GPU check without a GPU: commands are stopped in time, what they did is kept and counted."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_check
import pytest
from gpu_stages.gpu_tests import BLOCK, Collection, collect, counted, dealt, gpu_test_files, shard_commands
from gpu_stages.processes import Command, Outcome, run_all

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, folder: Path, name: str = "a", out: bool = False) -> Command:
    return Command((sys.executable, "-c", code), folder / f"{name}.log", folder / f"{name}.json" if out else None)


def test_output_is_stored_and_exit_codes_are_reported(tmp_path: Path) -> None:
    good, bad = python("print(1)", tmp_path, "good", out=True), python("raise SystemExit(3)", tmp_path, "bad", out=True)
    outcomes = run_all([good, bad], limit=30, jobs=2)
    assert [outcome.code for outcome in outcomes] == [0, 3]
    assert (tmp_path / "good.json").read_text() == "1\n"
    assert not list(tmp_path.glob("*.part"))


def test_what_takes_too_long_is_stopped_and_its_log_stays(tmp_path: Path) -> None:
    slow = python("import time; print('began'); time.sleep(60)", tmp_path, "slow")
    silent = python("import time; time.sleep(60)", tmp_path, "silent", out=True)
    never = python("print(1)", tmp_path, "never")
    started = time.monotonic()
    outcomes = run_all([slow, silent, never], limit=4, jobs=2)
    assert [outcome.code for outcome in outcomes] == [None, None, None]
    assert time.monotonic() - started < 30
    assert (tmp_path / "slow.log").read_text().startswith("began")
    assert not (tmp_path / "silent.json").exists() and not (tmp_path / "never.log").exists()


def test_output_of_an_interrupted_command_stays_if_it_ends_by_itself(tmp_path: Path) -> None:
    code = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('kept')"
    (outcome,) = run_all([python(code, tmp_path, "kept", out=True)], limit=4)
    assert outcome.code is None and (tmp_path / "kept.json").read_text() == "kept\n"


def test_commands_of_a_background_process_can_be_interrupted(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
        run_all([python(code, tmp_path, "background", out=True)], limit=30)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "background.json").read_text() == "True\n"


def test_a_command_has_its_own_variables(tmp_path: Path) -> None:
    command = Command((sys.executable, "-c", "import os; print(os.environ['A'])"), tmp_path / "a.log", None, {"A": "1"})
    run_all([command], limit=30)
    assert (tmp_path / "a.log").read_text() == "1\n"


@pytest.mark.parametrize(("count", "shards"), [(1, 4), (100, 7), (3 * BLOCK, 3)])
def test_every_test_is_dealt_once(count: int, shards: int) -> None:
    ids = [f"tests/a.py::test[{index}]" for index in range(count)]
    lists = dealt(ids, shards)
    assert sorted(test for tests in lists for test in tests) == sorted(ids)
    assert len(lists) <= shards and max(map(len, lists)) - min(map(len, lists)) <= BLOCK


def test_every_file_with_gpu_tests_is_found_and_collected(tmp_path: Path) -> None:
    files = gpu_test_files()
    assert "tests/kernels/test_update_ssm_state_8bit_gpu.py" in files
    assert "tests/kernels/test_update_ssm_state_decode_plan.py" not in files
    found = collect(["tests/kernels/test_update_ssm_state_8bit_gpu.py"], "zeros", tmp_path / "collect.log", 120)
    names = [test.split("::")[1].split("[")[0] for test in found.ids]
    assert names == ["test_a_row_of_zeros_stays_zero"] * 2 and not found.uncollected


def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "test_broken_gpu.py"
    broken.write_text("import no_such_package\n")
    found = collect([str(broken)], "", tmp_path / "collect.log", 120)
    assert not found.ids and [Path(name).name for name in found.uncollected] == [broken.name]


def test_tests_are_counted_from_what_a_process_printed(tmp_path: Path) -> None:
    log = tmp_path / "tests-0.log"
    log.write_text(
        "tests/a.py::test_x[1-a b] PASSED                       [ 20%]\n"
        "tests/a.py::test_y FAILED [ 40%]\n"
        "tests/a.py::test_z SKIPPED (needs a GPU) [ 60%]\n"
        "tests/a.py::test_v "
    )
    counts = counted([Outcome(Command((), log), None, 1.0)], expected=5)
    assert counts == {"tests": 5, "passed": 1, "failed": ["tests/a.py::test_y"], "skipped": 1, "not_run": 2}


def test_shards_take_their_tests_from_a_file(tmp_path: Path) -> None:
    (command,) = shard_commands(["tests/a.py::b[c d]"], 3, tmp_path, "memcheck", ("tool", "--flag"))
    assert command.arguments[:2] == ("tool", "--flag")
    assert Path(command.arguments[-1].removeprefix("@")).read_text() == "tests/a.py::b[c d]\n"


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> dict[str, gpu_check.Stage]:
    """Three stages: one passes, one fails, one is cut short by the keyboard."""

    def interrupted(run: gpu_check.Run, limit: float) -> dict[str, Any]:
        raise KeyboardInterrupt

    made = {
        "good": gpu_check.Stage(10.0, lambda run, limit: {"status": gpu_check.PASSED, "limit": limit}),
        "bad": gpu_check.Stage(10.0, lambda run, limit: {"status": gpu_check.FAILED}),
        "cut": gpu_check.Stage(10.0, interrupted),
    }
    monkeypatch.setattr(gpu_check, "STAGES", made)
    monkeypatch.setattr(gpu_check, "machine", lambda: {"gpu": {"name": "a GPU"}})
    return made


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / gpu_check.SUMMARY).read_text(encoding="utf-8"))["stages"]


def test_an_interrupted_run_writes_its_results_so_far(stages: dict[str, gpu_check.Stage], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        gpu_check.main(["--out", str(tmp_path)])
    assert {name: stage["status"] for name, stage in summary(tmp_path).items()} == {"good": "passed", "bad": "failed"}


def test_stages_and_limits_are_chosen(stages: dict[str, gpu_check.Stage], tmp_path: Path) -> None:
    assert gpu_check.main(["--out", str(tmp_path), "--stage", "good", "--limit", "good=7"]) == 0
    assert summary(tmp_path)["good"]["limit"] == 7.0 and list(summary(tmp_path)) == ["good"]
    assert gpu_check.main(["--out", str(tmp_path), "--stage", "bad"]) == 1
    with pytest.raises(SystemExit) as caught:
        gpu_check.main(["--out", str(tmp_path), "--limit", "other=7"])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--until", "good"], ["good"]),
        (["--from", "bad", "--until", "bad"], ["bad"]),
        (["--until", "bad"], ["good", "bad"]),
    ],
)
def test_a_run_may_have_some_of_the_stages(
    options: list[str], names: list[str], stages: dict[str, gpu_check.Stage], tmp_path: Path
) -> None:
    gpu_check.main(["--out", str(tmp_path), *options])
    assert list(summary(tmp_path)) == names


def test_options_that_leave_no_stage_are_refused(stages: dict[str, gpu_check.Stage], tmp_path: Path) -> None:
    for options in (["--from", "bad", "--until", "good"], ["--from", "bad", "--stage", "good"]):
        with pytest.raises(SystemExit) as caught:
            gpu_check.main(["--out", str(tmp_path), *options])
        assert caught.value.code == 2


def test_stages_share_the_seconds_of_the_run(stages: dict[str, gpu_check.Stage], tmp_path: Path) -> None:
    gpu_check.main(["--out", str(tmp_path), "--until", "bad", "--seconds", "3"])
    assert 2.0 < summary(tmp_path)["good"]["limit"] <= 3.0
    assert gpu_check.main(["--out", str(tmp_path), "--seconds", "0"]) == 1
    assert {stage["status"] for stage in summary(tmp_path).values()} == {"out of time"}


def test_without_a_gpu_nothing_runs(
    stages: dict[str, gpu_check.Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "machine", lambda: {"gpu": None})
    assert gpu_check.main(["--out", str(tmp_path)]) == 2
    assert not (tmp_path / gpu_check.SUMMARY).exists()


def _kernel_benchmarks(
    monkeypatch: pytest.MonkeyPatch, groups: tuple[str, ...], result: Callable[[Sequence[str]], str]
) -> list[Sequence[str]]:
    """Put programs in place of the benchmarks of ``groups``, two a process, and return the groups of each that began.

    result: from a process's groups, the code of its program.
    """
    begun: list[Sequence[str]] = []

    def command(run: gpu_check.Run, name: str, kind: str, flag: str, *chosen: str) -> Command:
        begun.append(chosen)
        return python(result(chosen), run.folder, "-".join(chosen), out=True)

    monkeypatch.setattr(gpu_check, "_benchmark", command)
    monkeypatch.setattr(gpu_check, "GROUPS", groups)
    monkeypatch.setattr(gpu_check, "GROUPS_OF_A_PROCESS", 2)
    return begun


def _document(groups: Sequence[str], correct: bool = True, **results: Any) -> str:
    rows = {group: [{"case": "a"}] for group in groups}
    results = {"device": {}, "groups": rows, **results}
    document = {"benchmark": "kernels", "settings": {}, "correct": correct, "results": results}
    return f"print({json.dumps(json.dumps(document))})"


def test_kernel_documents_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = _kernel_benchmarks(monkeypatch, ("a", "b", "c"), lambda groups: _document(groups, "c" in groups))
    assert gpu_check.kernels(gpu_check.Run(tmp_path, 1), 60)["status"] == "passed"
    joined = json.loads((tmp_path / "kernels.json").read_text(encoding="utf-8"))
    assert begun == [("a", "b"), ("c",)]
    assert list(joined["results"]["groups"]) == joined["settings"]["groups"] == ["a", "b", "c"]
    assert not joined["correct"]


def test_groups_of_a_process_that_failed_run_again_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def result(groups: Sequence[str]) -> str:
        return "raise SystemExit(2)" if "failing" in groups else _document(groups)

    begun = _kernel_benchmarks(monkeypatch, ("failing", "first", "second"), result)
    assert gpu_check.kernels(gpu_check.Run(tmp_path, 1), 60)["status"] == "failed"
    joined = json.loads((tmp_path / "kernels.json").read_text(encoding="utf-8"))
    assert begun == [("failing", "first"), ("second",), ("failing",), ("first",)]
    assert list(joined["results"]["groups"]) == ["first", "second"]


def test_rows_of_an_interrupted_process_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def result(groups: Sequence[str]) -> str:
        if "slow" not in groups:
            return _document(groups)
        return f"import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: {_document(['slow'], interrupted=True)}"

    _kernel_benchmarks(monkeypatch, ("a", "b", "slow", "never"), result)
    assert gpu_check.kernels(gpu_check.Run(tmp_path, 1), 8)["status"] == "out of time"
    joined = json.loads((tmp_path / "kernels.json").read_text(encoding="utf-8"))
    assert list(joined["results"]["groups"]) == ["a", "b", "slow"] and joined["results"]["interrupted"]


def _never_run(seen: list[Command]) -> Callable[..., list[Outcome]]:
    """In place of run_all: what it is given is added to ``seen``."""

    def stopped(commands: Sequence[Command], *_: object) -> list[Outcome]:
        seen.extend(commands)
        return [Outcome(command, None, 0.0) for command in commands]

    return stopped


def test_only_benchmarks_get_the_folder_of_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Command] = []
    monkeypatch.setattr(gpu_check, "run_all", _never_run(commands))
    monkeypatch.setattr(gpu_check, "collect", lambda *_: Collection(("tests/a.py::test_x",)))
    monkeypatch.setenv("PYTHONPATH", "before")
    run = gpu_check.Run(tmp_path, 1, commit="0123abc", peers=tmp_path)
    for stage in ("tests", "serving"):
        gpu_check.STAGES[stage].work(run, 1.0)
    tests, serving = commands
    assert not tests.environment
    assert serving.environment == {"PYTHONPATH": f"{tmp_path}{os.pathsep}before"}
    assert " --commit 0123abc" in " ".join(serving.arguments)


def test_every_benchmark_that_a_stage_runs_has_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.registry import ENTRIES

    commands: list[Command] = []
    monkeypatch.setattr(gpu_check, "run_all", _never_run(commands))
    run = gpu_check.Run(tmp_path, 1, work=tmp_path)
    stages = [name for name in gpu_check.STAGES if name not in ("tests", *gpu_check.SANITIZERS)]
    for name in stages:
        gpu_check.STAGES[name].work(run, 1.0)
    parts = -(-len(gpu_check.GROUPS) // gpu_check.GROUPS_OF_A_PROCESS)
    assert len(commands) == len(gpu_check.GROUPS) + parts + len(stages) - 2
    for command in commands:
        _, _, module, name, *options = command.arguments
        assert module == "benchmarks" and name in ENTRIES and options[0] == "--json"
