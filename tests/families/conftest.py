"""Each case's checkpoint, made once for all its tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.families.case import Case, all_cases
from tests.families.models import Reference, save_checkpoint


@dataclass(frozen=True, slots=True)
class Model:
    case: Case
    folder: Path
    reference: Reference


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "model" in metafunc.fixturenames:
        found = all_cases()
        metafunc.parametrize("model", found, ids=[case.name for case in found], indirect=True, scope="module")


@pytest.fixture(scope="session")
def made() -> dict[str, Model]:
    return {}


@pytest.fixture(scope="module")
def model(
    request: pytest.FixtureRequest, made: dict[str, Model], tmp_path_factory: pytest.TempPathFactory, smollm2: Path
) -> Model:
    case: Case = request.param
    if case.name not in made:
        folder = tmp_path_factory.mktemp(case.name) / case.name
        save_checkpoint(case, folder, smollm2)
        made[case.name] = Model(case, folder, Reference(case, folder))
    return made[case.name]
