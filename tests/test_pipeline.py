"""`compile` on small random models: what the output holds, that it is the same each time, and that it is the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graph.harness import Decoder
from trtbuild.building import read_profiles
from trtbuild.checkpoint import open_checkpoint
from trtbuild.dtypes import DType
from trtbuild.emitting import emit
from trtbuild.engine.gpu import devices
from trtbuild.engine.request import BuildOptions, EngineResult, Flavour, Realised
from trtbuild.errors import InputError
from trtbuild.exporting import read_weights
from trtbuild.options import AttentionForm, Backend, CompileOptions, EngineOptions, ExportOptions, Precision
from trtbuild.pipeline import CompileResult, compile
from trtbuild.progress import Silent
from trtbuild.serving.config import LEVELS, ServingConfig
from trtbuild.serving.config import Backend as ServingBackend
from trtbuild.serving.runners import open_runner
from trtbuild.serving.runners.base import StepRow
from trtbuild.slo import parse_slo
from trtbuild.triton.check import check_repository
from trtbuild.triton.repository import version_folder
from trtbuild.verify.reference import Reference

Checkpoints = Callable[..., Path]
ONNX = EngineOptions(Backend.ONNX)
RTX = EngineOptions(Backend.RTX, ("sm_89",))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., CompileResult]:
    """Compile into tmp_path/`out` with a cache of the test's own, 2 slots of 64 positions, for ONNX Runtime."""

    def compile_it(model: Path, out: str = "out", **changes: Any) -> CompileResult:
        export = replace(changes.pop("export", ExportOptions()), cache=tmp_path / "cache")
        options = CompileOptions(export=export, engine=ONNX, slots=2, capacity=64, name="tiny")
        return compile(model, tmp_path / out, replace(options, **changes))

    return compile_it


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def manifest(result: CompileResult) -> Any:
    return json.loads((result.folder / "build.json").read_text())


def version(result: CompileResult) -> Path:
    return result.repository / result.model_name / "1"


def logits_differ_by(file: Path, checkpoint: Path) -> float:
    """The largest difference between the graph's logits and transformers', in FP32, over 40 tokens."""
    tokens = np.random.default_rng(1).integers(0, 512, 40)
    want = Reference(open_checkpoint(checkpoint, cache=checkpoint.parent)).logits(tokens.tolist())
    return float(np.abs(Decoder(file).step(tokens[None], [0])[0] - want).max())


def test_the_output_tree(tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult]) -> None:
    result = make(tiny_checkpoint())
    found = {name for name in files(result.folder) if "trtbuild_serving" not in name}
    model = "model_repository/tiny"
    assert found == {
        "README.md", "Dockerfile", "build.json", "timings.json",
        "onnx/model.onnx", "onnx/model.safetensors",
        f"{model}/config.pbtxt", f"{model}/warmup/text_input", f"{model}/warmup/max_tokens",
        f"{model}/1/model.onnx", f"{model}/1/model.safetensors", f"{model}/1/model.py", f"{model}/1/serving.json",
        f"{model}/1/tokenizer.json", f"{model}/1/tokenizer_config.json", f"{model}/1/chat_template.jinja",
    }  # fmt: skip
    assert result.engine is None and result.missing_builder is None
    # layers x (key, value) x slots x heads x positions x head_dim x bytes
    assert result.kv_cache_bytes == 2 * 2 * 2 * 2 * 64 * 16 * 4


def test_serving_json_says_what_was_built(tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult]) -> None:
    config = ServingConfig.load(version(make(tiny_checkpoint())) / "serving.json")
    cache = config.cache
    assert (cache.layers, cache.slots, cache.kv_heads, cache.capacity, cache.key_dim) == (2, 2, 2, 64, 16)
    assert (config.model_name, config.vocab_size, config.eos_token_ids) == ("tiny", 512, (2,))
    assert config.backends == (ServingBackend("onnxruntime", "model.onnx", "float32"),)
    assert config.prefill_chunk == 64
    assert config.profiles[0].covers(2, 1, 64) and config.profiles[1].covers(1, 64, 64)
    assert config.levels == LEVELS and config.itl_objective == 0.2


def test_objectives_are_what_the_scheduler_aims_at(
    tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult]
) -> None:
    result = make(tiny_checkpoint(), slo=parse_slo(["ttft=2s,itl=150ms", "1:ttft=500ms,tpot=100ms"]))
    config = ServingConfig.load(version(result) / "serving.json")
    assert [level.ttft_objective for level in config.levels] == [0.5, 2.0, 2.0] and config.itl_objective == 0.1
    assert [level.limit for level in config.levels] == [level.limit for level in LEVELS]
    assert manifest(result)["options"]["slo"] == [
        "ttft ≤ 2 s, itl ≤ 150 ms",
        "priority 1: ttft ≤ 500 ms, tpot ≤ 100 ms",
    ]
    readme = (result.folder / "README.md").read_text()
    assert (
        "| 1 | 30 s | 64 | within 0.5 s |\n| 2 | 120 s | 256 | within 2 s |" in readme and "for 80% of that" in readme
    )


@pytest.mark.parametrize(("eos", "ids"), [([7, 9], (7, 9)), (5, (5,)), (None, (2,))])
def test_generation_config_has_the_last_word_on_eos(
    tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult], eos: Any, ids: tuple[int, ...]
) -> None:
    checkpoint = tiny_checkpoint()
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    assert ServingConfig.load(version(make(checkpoint)) / "serving.json").eos_token_ids == ids


def test_the_manifest_names_every_file_by_its_hash(
    tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult]
) -> None:
    checkpoint = tiny_checkpoint(dtype="bfloat16")
    result = make(checkpoint, export=ExportOptions(Precision.INT4, block_size=32))
    found = manifest(result)
    assert set(found["outputs"]) == files(result.folder) - {"build.json", "timings.json"}
    for place, hashes in ((result.folder, found["outputs"]), (checkpoint, found["source"]["files"])):
        for name, digest in hashes.items():
            assert hashlib.sha256((place / name).read_bytes()).hexdigest() == digest, name
    assert {"model.safetensors", "tokenizer.json"} <= set(found["source"]["files"])
    assert found["source"]["name"] == str(checkpoint)
    assert found["precision"] == {
        "weights": "int4", "network": "BF16", "kept_in_fp32": [],
        # q, k, v, o, gate, up, down of two layers
        "int4": {
            "method": "rtn", "block_sizes": [32], "int8_matrices": 0, "layers": ["attention", "mlp"], "matrices": 14,
            "embedding": False,
        },
    }  # fmt: skip
    assert (found["profiles"]["slots"], found["profiles"]["capacity"]) == (2, 64)
    assert (found["engine"], found["options"]["backend"]) == (None, "onnx")


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.INT4])
def test_the_same_input_gives_the_same_bytes(
    tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult], precision: Precision
) -> None:
    checkpoint, export = tiny_checkpoint(), ExportOptions(precision)
    first, second = (make(checkpoint, out, export=export).folder for out in ("first", "second"))
    assert files(first) == files(second)
    different = {name for name in files(first) if (first / name).read_bytes() != (second / name).read_bytes()}
    assert different <= {"timings.json"}


@pytest.mark.parametrize(
    ("stored", "precision", "served", "network"),
    [
        ("float32", Precision.FP32, 1e-3, DType.F32),
        ("float16", Precision.FP16, 1e-3, DType.F16),
        ("bfloat16", Precision.BF16, 1e-3, DType.BF16),
        # INT4 of random weights is far off; that is tested where INT4 is. Here: that it is another model.
        ("bfloat16", Precision.INT4, None, DType.BF16),
    ],
    ids=lambda value: getattr(value, "value", str(value)),
)
def test_the_cpus_graph_is_the_model_in_fp32(
    tiny_checkpoint: Checkpoints,
    make: Callable[..., CompileResult],
    stored: str,
    precision: Precision,
    served: float | None,
    network: DType,
) -> None:
    checkpoint = tiny_checkpoint(dtype=stored)
    result = make(checkpoint, export=ExportOptions(precision))
    properties = {
        p.key: p.value
        for p in onnx.load(result.folder / "onnx" / "model.onnx", load_external_data=False).metadata_props
    }
    assert properties["trtbuild.network_type"] == network.value
    difference = logits_differ_by(version(result) / "model.onnx", checkpoint)
    assert difference < served if served is not None else 0.05 < difference < 20


def test_int4_is_near_the_dequantised_model(tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult]) -> None:
    """Where every weight is one of INT4's values already, rounding loses nothing, and the logits are transformers'."""
    from safetensors.numpy import load_file, save_file

    checkpoint, random = tiny_checkpoint(), np.random.default_rng(0)
    weights = load_file(checkpoint / "model.safetensors")
    for name, values in weights.items():
        if "_proj" in name:
            codes = random.integers(-7, 8, values.shape)
            codes[:, ::32] = 7  # each block of 32 has its largest
            weights[name] = (codes / 32).astype(np.float32)
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    result = make(checkpoint, export=ExportOptions(Precision.INT4, activations=DType.F32, block_size=32))
    assert logits_differ_by(version(result) / "model.onnx", checkpoint) < 1e-3


def test_weights_are_on_the_disk_once(tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult]) -> None:
    checkpoint = tiny_checkpoint()
    result = make(checkpoint)
    inode = (checkpoint / "model.safetensors").stat().st_ino
    assert (version(result) / "model.safetensors").stat().st_ino == inode
    copied = make(checkpoint, "copied", export=ExportOptions(copy_weights=True))
    assert (version(copied) / "model.safetensors").stat().st_ino != inode
    onnx.load(version(copied) / "model.onnx")  # onnx's own reader refuses links


@pytest.mark.parametrize(("dtype", "served"), [("float16", "float16"), ("float32", "float32")])
def test_an_engine(tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult], dtype: str, served: str) -> None:
    result = make(tiny_checkpoint(dtype=dtype), engine=RTX)
    assert result.engine is not None
    plan = version(result) / "model.rtx.plan"
    assert result.engine.file == plan and plan.stat().st_size == result.engine.bytes > 100_000
    engine, cpu = ServingConfig.load(version(result) / "serving.json").backends
    assert (engine.kind, engine.file, engine.dtype, engine.targets) == (
        "tensorrt_rtx", "model.rtx.plan", served, ("sm_89",)
    )  # fmt: skip
    assert cpu.kind == "onnxruntime"
    found = manifest(result)
    assert found["engine"]["file"] == "model_repository/tiny/1/model.rtx.plan"
    assert found["engine"]["version"] == engine.version
    assert found["outputs"]["model_repository/tiny/1/model.rtx.plan"] == hashlib.sha256(plan.read_bytes()).hexdigest()
    assert not (result.folder / "onnx" / "model.rtx.plan").exists()


def test_without_the_cpus_graph(tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult]) -> None:
    checkpoint = tiny_checkpoint(dtype="float16")
    result = make(checkpoint, engine=RTX, cpu_fallback=False)
    assert not list(version(result).glob("*.onnx")) and not list(version(result).glob("*.safetensors"))
    alone = make(checkpoint, "alone", cpu_fallback=False)  # something must run
    assert (version(alone) / "model.onnx").exists()


def change_one_weight(checkpoint: Path) -> None:
    """One byte of the last tensor; the header, and so the fingerprint, stays."""
    file = checkpoint / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 0x80
    file.write_bytes(data)


def test_an_engine_is_built_once_for_the_same_inputs(
    tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult]
) -> None:
    """Another name or folder takes the plan from the cache; another profile, option, target or weight does not."""
    checkpoint = tiny_checkpoint(dtype="float16", num_hidden_layers=1)

    def built_before(out: str, **changes: Any) -> bool:
        result = make(checkpoint, out, **{"engine": RTX, **changes})
        (stage,) = (stage for stage in result.stages if stage.name == "engine")
        return "built before" in stage.note

    assert not built_before("first")
    assert built_before("second", name="other")
    first, second = (next(iter((checkpoint.parent / out).rglob("*.plan"))) for out in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert not built_before("slots", slots=1)
    assert not built_before("option", engine=replace(RTX, builder=replace(RTX.builder, optimization_level=0)))
    assert not built_before("target", engine=replace(RTX, targets=("sm_86",)))
    change_one_weight(checkpoint)
    assert not built_before("weight")
    assert built_before("again")


@pytest.mark.parametrize("damage", ["gone", "changed", "other-result"])
def test_a_damaged_cache_entry_is_built_again(
    tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult], tmp_path: Path, damage: str
) -> None:
    """The output's plan is a link to the cache's, so whoever writes into the one writes into the other."""
    checkpoint = tiny_checkpoint(dtype="float16", num_hidden_layers=1)
    first = make(checkpoint, "first", engine=RTX)
    assert first.engine is not None
    good = first.engine.file.read_bytes()
    (entry,) = (tmp_path / "cache" / "engine").iterdir()
    match damage:
        case "gone":
            (entry / "plan").unlink()
        case "changed":
            with first.engine.file.open("r+b") as stream:
                stream.write(b"mine")
        case "other-result":
            (entry / "result.json").write_text("{}")
    second = make(checkpoint, "second", engine=RTX)
    assert second.engine is not None and len(second.engine.file.read_bytes()) == second.engine.bytes
    assert second.engine.file.read_bytes()[:4] == good[:4]
    third = make(checkpoint, "third", engine=RTX)
    assert "built before" in next(stage.note for stage in third.stages if stage.name == "engine")


def test_the_plugin_form_is_compiled_for_the_cpu_and_not_for_rtx(
    tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult], tmp_path: Path
) -> None:
    checkpoint, paged = tiny_checkpoint(head_dim=64), ExportOptions(attention=AttentionForm.PLUGIN, page_size=32)
    with pytest.raises(InputError, match="TensorRT-RTX has no plugins, .* Use --attention native, or --backend tensor"):
        make(checkpoint, export=paged, engine=RTX)
    assert not (tmp_path / "out").exists()
    result = make(checkpoint, export=paged)
    serving = ServingConfig.load(version(result) / "serving.json")
    cache = serving.cache
    assert (cache.page_size, cache.pages) == (32, cache.slots * -(-cache.capacity // 32))
    runner = open_runner(serving, version(result), print)
    (logits,) = runner.step([StepRow([3], [1, 2, 3], 0, 3, True)])
    assert np.isfinite(logits).all() and f"in {cache.pages} pages of 32" in runner.description
    runner.close()


def test_the_plugin_form_of_rope_that_depends_on_the_length(
    tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult]
) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    checkpoint = tiny_checkpoint(head_dim=64, rope_parameters=rope, max_position_embeddings=32)
    result = make(checkpoint, export=ExportOptions(attention=AttentionForm.PLUGIN))
    serving = ServingConfig.load(version(result) / "serving.json")
    assert serving.sequence_lengths and serving.cache.page_size == 64
    runner = open_runner(serving, version(result), print)
    short, long = (runner.step([StepRow([1], [1, 2, 3], 0, length, True)])[0].copy() for length in (32, 60))
    assert np.abs(short - long).max() > 1e-3
    runner.close()


@pytest.mark.skipif(bool(devices()), reason="there is a GPU, on which the engine would be built")
def test_the_plugin_form_without_a_gpu_is_told_what_an_engine_takes(
    tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult]
) -> None:
    paged = ExportOptions(attention=AttentionForm.PLUGIN)
    result = make(tiny_checkpoint(head_dim=64), export=paged, engine=EngineOptions(Backend.AUTO))
    assert result.engine is None and "is TensorRT 10's, which builds on the GPU" in (result.missing_builder or "")


def test_an_engine_of_the_plugin_form_carries_the_library(tiny_checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Profiles of ragged steps: a prompt of a whole slot, and a token of each slot's answer. A version-compatible plan
    has the library inside."""
    checkpoint = tiny_checkpoint(head_dim=64)
    library = tmp_path / "libtrtbuild_plugin.so"
    library.write_bytes(b"a library")
    export = ExportOptions(attention=AttentionForm.PLUGIN, cache=tmp_path / "cache")
    weights, profiles = read_weights(checkpoint, export, Silent()), read_profiles("chat", None, 64)
    for inside in (False, True):
        out = tmp_path / str(inside)
        out.mkdir()
        (out / "model.plan").write_bytes(b"a plan")
        engine = EngineResult(
            out / "model.plan", 6, 1.0, 1, "10.16.1.11", Flavour.TENSORRT, ("sm_90",), Realised(0, {}, None), ()
        )
        builder = BuildOptions(version_compatible=inside, plugin_libraries=(library,))
        options = CompileOptions(export, EngineOptions(Backend.TENSORRT, builder=builder))
        emit(out, "tiny", weights, profiles, engine, options, page_size=32)
        place = version_folder(out, "tiny")
        serving = ServingConfig.load(place / "serving.json")
        assert serving.backends[0].plugins == (() if inside else (library.name,))
        assert (place / library.name).is_file() is not inside
        assert [(each.batch, each.tokens) for each in serving.profiles] == [
            ((1, 4, 8), (1, 4, 8)), ((1, 4, 8), (1, 68, 72)),
        ]  # fmt: skip
    library_there = version_folder(tmp_path / "False", "tiny") / library.name
    assert library_there.stat().st_ino != library.stat().st_ino
    library_there.unlink()
    (problem,) = check_repository(tmp_path / "False" / "model_repository")
    assert str(problem) == f"{library_there}: the library is missing; the plan model.plan needs its plugins"


def test_a_capacity_beyond_the_model(
    tiny_checkpoint: Checkpoints, make: Callable[..., CompileResult], tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoint()
    assert make(checkpoint, capacity=256).folder.exists()
    with pytest.raises(InputError, match="257 positions.*trained for 256"):
        make(checkpoint, "beyond", capacity=257)
    assert not [path for path in tmp_path.iterdir() if "beyond" in path.name]
