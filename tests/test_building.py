"""`build`: which builder, a plan as one file, and what does not fit together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtbuild.building import Choice, build, choose_builder, read_profiles
from trtbuild.engine.gpu import devices
from trtbuild.engine.profiles import ProfileSet
from trtbuild.engine.request import BuildOptions, EngineResult, Flavour
from trtbuild.errors import BuildError, InputError
from trtbuild.exporting import export
from trtbuild.options import Backend, EngineOptions, ExportOptions
from trtbuild.progress import Silent
from trtbuild.stages import Stages
from trtbuild.store import Store, key_of

RTX = EngineOptions(Backend.RTX, ("sm_89",))


@pytest.fixture
def profiles() -> ProfileSet:
    return read_profiles("chat", 2, 64)


@pytest.fixture
def graph(tiny_checkpoint: Callable[..., Path]) -> Path:
    """One layer in FP16, a cache of 64 positions."""
    checkpoint = tiny_checkpoint(dtype="float16", num_hidden_layers=1)
    options = ExportOptions(cache=checkpoint.parent / "cache")
    return export(checkpoint, checkpoint.parent / "graph", options, capacity=64).onnx_file


@pytest.fixture
def build_it(graph: Path, profiles: ProfileSet, tmp_path: Path) -> Callable[..., EngineResult]:
    def run(destination: Path, **changes: Any) -> EngineResult:
        arguments = {
            "onnx_file": graph, "profiles": profiles, "options": RTX, "stages": Stages(Silent()),
            "store": Store(tmp_path / "cache"),
        }  # fmt: skip
        return build(destination=destination, **{**arguments, **changes})

    return run


def test_a_plan_is_one_file(build_it: Callable[..., EngineResult], tmp_path: Path) -> None:
    place = tmp_path / "deep" / "folder"
    result = build_it(place / "my.plan")
    assert [file.name for file in place.iterdir()] == ["my.plan"]
    assert result.file == place / "my.plan" and result.file.stat().st_size == result.bytes
    assert (result.flavour, result.targets) == (Flavour.RTX, ("sm_89",))
    assert (result.realised.int4_weights, set(result.realised.matmul_types)) == (0, {"HALF"})


def test_a_plan_is_refused_or_replaced(build_it: Callable[..., EngineResult], tmp_path: Path) -> None:
    (tmp_path / "my.plan").write_text("mine")
    with pytest.raises(InputError, match="my.plan exists.*--force"):
        build_it(tmp_path / "my.plan")
    assert (tmp_path / "my.plan").read_text() == "mine"
    result = build_it(tmp_path / "my.plan", force=True)
    assert (tmp_path / "my.plan").stat().st_size == result.bytes > 4


def test_a_failure_keeps_what_force_would_replace(
    build_it: Callable[..., EngineResult], profiles: ProfileSet, tmp_path: Path
) -> None:
    (tmp_path / "my.plan").write_text("mine")
    other = read_profiles("chat", 2, 32)
    with pytest.raises(InputError, match="cache of 64 positions .* for 32. Export with --capacity 32, or build with"):
        build_it(tmp_path / "my.plan", profiles=other, force=True)
    assert (tmp_path / "my.plan").read_text() == "mine"
    assert not list(tmp_path.glob(".my.plan*"))


def test_fp32_attention_has_no_kernel_of_its_own_and_is_taken_apart(
    tiny_checkpoint: Callable[..., Path], build_it: Callable[..., EngineResult], tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoint(num_hidden_layers=1)
    graph = export(checkpoint, tmp_path / "fp32", ExportOptions(cache=tmp_path / "cache"), capacity=64).onnx_file
    assert build_it(tmp_path / "my.plan", onnx_file=graph).bytes > 0


def test_no_engine_from_the_onnx_backend(build_it: Callable[..., EngineResult], tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="builds no engine"):
        build_it(tmp_path / "my.plan", options=EngineOptions(Backend.ONNX))


def test_a_builder_is_chosen() -> None:
    assert choose_builder(EngineOptions(Backend.ONNX)) == Choice(None)
    assert choose_builder(EngineOptions(Backend.RTX)) == Choice(Flavour.RTX)
    if not devices():
        assert choose_builder(EngineOptions(Backend.AUTO)) == Choice(Flavour.RTX)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (EngineOptions(Backend.ONNX, ("sm_89",)), "--target .* --backend onnx"),
        (replace(RTX, targets=("sm_13",)), "sm_13"),
        (replace(RTX, builder=BuildOptions(optimization_level=6)), "0 to 5, not 6"),
        (replace(RTX, builder=BuildOptions(version_compatible=True)), "version-compatible"),
    ],
    ids=["target-without-engine", "target", "level", "version-compatible"],
)
def test_what_a_builder_cannot_do_is_refused_at_once(options: EngineOptions, names: str) -> None:
    with pytest.raises(InputError, match=names):
        choose_builder(options)


def test_keys_depend_on_values_not_on_their_order() -> None:
    assert key_of(a=1, b=[2, "x"]) == key_of(b=[2, "x"], a=1)
    assert key_of(a=1) != key_of(a=2) != key_of(b=2)


def test_a_store_keeps_whole_results_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt), store.keep("engine", "key") as folder:
        (folder / "half").touch()
        raise KeyboardInterrupt
    assert not list((tmp_path / "engine").iterdir())
    with store.keep("engine", "key") as folder:
        (folder / "whole").touch()
    assert (store.place("engine", "key") / "whole").exists()
