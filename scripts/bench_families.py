"""Export of every published model's real size, and how many ONNX nodes a layer takes, next to the peers.

    python scripts/bench_families.py sizes [--only NAME]
    python scripts/bench_families.py nodes [--only NAME]

`sizes` writes each model of tests/families as a sparse checkpoint (it takes no disk) under .cache/ and exports it as a
whole process. `nodes` exports each small random model of tests/families with its layers once and twice, by trtbuild,
onnxruntime-genai and optimum-onnx (each in an environment of its own, see bench_export.py), and divides the difference.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from bench_export import CACHE, environment  # noqa: E402
from synthetic_checkpoint import tensors_of, write_checkpoint  # noqa: E402

from tests.families.case import Case, Real, all_cases, all_real  # noqa: E402
from tests.families.models import SMALL, save_checkpoint  # noqa: E402

TRTBUILD = str(Path(sys.executable).parent / "trtbuild")
SHARD_BYTES = 5e9
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
"""What config.json files call their number of layers."""


def peak_megabytes(pid: int) -> float:
    """The largest resident size so far; ru_maxrss would count this process' own, which the child inherits."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def size(real: Real, runs: int) -> tuple[float, float, int, float]:
    """Seconds (the best of `runs`), peak MB, nodes and checkpoint GB of one export."""
    folder = CACHE / "sparse" / real.name
    shards = max(1, round(2 * real.parameters / SHARD_BYTES))
    assert tensors_of(real.config)
    total = write_checkpoint(folder, real.config, shards=shards)
    best, peak, nodes = float("inf"), 0.0, 0
    for _ in range(runs):
        with tempfile.TemporaryDirectory(dir=CACHE) as place:
            command = [TRTBUILD, "export", str(folder), "--out", f"{place}/out", "--json"]
            started = time.perf_counter()
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            while child.poll() is None:
                peak = max(peak, peak_megabytes(child.pid))
                time.sleep(0.005)
            best = min(best, time.perf_counter() - started)
            assert child.stdout is not None
            output = child.stdout.read()
            if child.returncode:
                raise SystemExit(f"{real.name}: export failed")
            nodes = json.loads(output)["nodes"]
    return best, peak, nodes, total / 1e9


def sizes(only: str, runs: int) -> None:
    print(f"{'':28} {'weights':>10} {'wall':>8} {'peak':>8} {'nodes':>7} {'a layer':>8}")
    for real in all_real():
        if only in real.name:
            seconds, megabytes, nodes, gigabytes = size(real, runs)
            layers = next(
                real.config[name] for name in ("num_hidden_layers", "n_layer", "n_layers") if name in real.config
            )
            row = f"{gigabytes:7.1f} GB {seconds:6.2f} s {megabytes:5.0f} MB {nodes:7} {nodes / layers:8.1f}"
            print(f"{real.name:28} {row}", flush=True)


def exporters() -> dict[str, list[str]]:
    genai = environment("genai", "onnxruntime-genai==0.18.0", "transformers==5.24.0", "onnx", "onnx-ir", "accelerate")
    optimum = environment("optimum", "optimum-onnx[onnxruntime]==0.1.0")
    return {
        "trtbuild": [TRTBUILD, "export", "{model}", "--out", "{out}", "--precision", "fp32"],
        "genai": [
            genai, "-m", "onnxruntime_genai.models.builder", "-m", "{model}", "-o", "{out}", "-e", "cpu", "-p", "fp32",
            "-c", "{out}-cache",
        ],
        "optimum": [
            optimum, "-m", "optimum.commands.optimum_cli", "export", "onnx", "--model", "{model}",
            "--task", "text-generation-with-past", "--no-post-process", "{out}",
        ],
    }  # fmt: skip


def count_nodes(command: list[str], model: Path, out: Path) -> int | None:
    """Nodes of what the exporter wrote, or None if it does not take the model."""
    import onnx

    arguments = [part.format(model=model, out=out) for part in command]
    done = subprocess.run(arguments, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=300)
    files = sorted(out.glob("*.onnx"))
    if done.returncode or not files:
        return None
    return len(onnx.load(files[0], load_external_data=False).graph.node)


def with_layers_twice(case: Case) -> tuple[Case, int]:
    """The case with its layers, and what it says of each, once more; and how many that adds."""
    field = next((name for name in LAYERS if case.fields.get(name) is not None), "num_hidden_layers")
    layers = case.fields.get(field, SMALL["num_hidden_layers"])
    fields = {
        name: value * 2 if isinstance(value, list) and len(value) == layers else value
        for name, value in case.fields.items()
    }
    return replace(case, fields={**fields, field: 2 * layers}), layers


def nodes_per_layer(case: Case, command: list[str], tokenizer: Path) -> str:
    twice, layers = with_layers_twice(case)
    counts = []
    for each in (case, twice):
        with tempfile.TemporaryDirectory(dir=CACHE) as place:
            save_checkpoint(each, Path(place) / "model", tokenizer)
            counts.append(count_nodes(command, Path(place) / "model", Path(place) / "out"))
    first, second = counts
    return "–" if first is None or second is None else f"{(second - first) / layers:.1f}"


def nodes(only: str) -> None:
    commands = exporters()
    tokenizer = ROOT / ".cache" / "tests" / "smollm2-bf16"
    print(f"{'nodes a layer':24}" + "".join(f"{name:>10}" for name in commands))
    for case in all_cases():
        if only in case.name and case.save is None:
            row = [nodes_per_layer(case, command, tokenizer) for command in commands.values()]
            print(f"{case.name:24}" + "".join(f"{value:>10}" for value in row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("sizes", "nodes"))
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    if arguments.table == "sizes":
        sizes(arguments.only, arguments.runs)
    else:
        nodes(arguments.only)


if __name__ == "__main__":
    main()
