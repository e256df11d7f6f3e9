"""The library that `compile` takes for an engine of the plugin form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.conftest import QUICK
from trtbuild.engine.gpu import Gpu
from trtbuild.engine.request import BuildOptions
from trtbuild.options import EngineOptions
from trtbuild.plugin import build as plugin_build
from trtbuild.plugin import keeping
from trtbuild.plugin.info import read_info
from trtbuild.progress import Silent
from trtbuild.stages import Stages
from trtbuild.store import Store


def test_it_is_compiled_once_for_the_gpus_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of a kind and one of another, with the kernels that compile in a second."""
    monkeypatch.setattr(keeping, "find_sources", lambda: QUICK)
    monkeypatch.setattr(plugin_build, "devices", lambda: (Gpu("a", "sm_90"), Gpu("b", "sm_90"), Gpu("c", "sm_86")))
    store = Store(tmp_path)
    stages = Stages(Silent())
    (library,) = keeping.with_plugin(EngineOptions(), stages, store).builder.plugin_libraries
    assert read_info(library).targets == ("sm_90", "sm_86")
    assert [stage.name for stage in stages.done] == ["configure", "compile"]
    again = Stages(Silent())
    assert keeping.with_plugin(EngineOptions(), again, store).builder.plugin_libraries == (library,)
    assert again.done == []


def test_one_that_is_given_is_taken(tmp_path: Path) -> None:
    given = EngineOptions(builder=BuildOptions(plugin_libraries=(tmp_path / "mine.so",)))
    assert keeping.with_plugin(given, Stages(Silent()), Store(tmp_path)) is given
