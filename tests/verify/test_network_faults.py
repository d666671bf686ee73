"""Mutation test: verify through the computed network finds every fault of a parsed network, or refuses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt_network import parsed
from hybridge.trt_plugins.network.description import NetworkDescription
from hybridge.verification.options import VerifyOptions
from hybridge.verification.report import VerifyReport
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.verify.network_faults import FAULTS, ON_PUSH, SOURCES, NetworkFault

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")


class Faulty:
    """Verifies artifacts whose network has a fault; each is parsed once."""

    def __init__(self, artifacts: ArtifactCache) -> None:
        self._artifacts = artifacts
        self._known: dict[str, tuple[NetworkDescription, bytes]] = {}

    def verify(self, fault: NetworkFault) -> VerifyReport:
        case, engine = SOURCES[fault.source]
        made = case.get(self._artifacts)
        plan_build, describe = parsed.plan_build, self._described(fault.source, parsed.run_description)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parsed, "run_description", lambda *given: fault.network(describe(*given)))
            planned = lambda *given: _with_profiles(plan_build(*given), fault)  # noqa: E731
            patch.setattr(parsed, "plan_build", planned)
            return verify(made.checkpoint, made.folder, VerifyOptions(engine, (1, 9), 3))

    def _described(self, source: str, describe: Callable[..., NetworkDescription]) -> Callable[..., NetworkDescription]:
        def described(job: Any, *given: Any) -> NetworkDescription:
            file = Path(job.constants)
            if source not in self._known:
                self._known[source] = describe(job, *given), file.read_bytes()
            found, constants = self._known[source]
            file.write_bytes(constants)
            return found

        return described


def _with_profiles(plan: Any, fault: NetworkFault) -> Any:
    return replace(plan, profiles=fault.profiles(plan.profiles))


@pytest.fixture(scope="module")
def faulty(artifacts: ArtifactCache) -> Faulty:
    return Faulty(artifacts)


@pytest.mark.parametrize(
    "name", [name if name in ON_PUSH else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_a_fault_is_found(name: str, faulty: Faulty) -> None:
    try:
        report = faulty.verify(FAULTS[name])
    except EngineError as error:
        assert any(word in str(error) for word in ("layer ", "profile ", "profile,", "plugins")), error
    else:
        assert not report.passed, report.verdict()


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_without_a_fault_all_agrees(source: str, faulty: Faulty) -> None:
    report = faulty.verify(NetworkFault(source))
    assert report.passed, report.verdict()


def test_enough_faults_are_known() -> None:
    assert len(FAULTS) >= 20 and set(ON_PUSH) <= set(FAULTS)
