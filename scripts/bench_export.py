"""Export and INT4 of SmolLM2 as whole processes, next to the peers, in the same run.

    python scripts/bench_export.py CHECKPOINT [--peers] [--runs 3]

With --peers, onnxruntime-genai's and optimum-onnx's exporters run too, each in an environment of its own under .cache/
(made once, some gigabytes). Prints the median wall time, the peak resident size of the largest process, and ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"


@dataclass(frozen=True, slots=True)
class Job:
    """One command to time; `{out}` is a fresh folder's path."""

    label: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    seconds: float
    megabytes: float


def measure(job: Job, runs: int) -> Figure:
    """Median wall time and largest peak of `runs` runs, after one that warms the file cache."""
    figures = [run(job) for _ in range(runs + 1)][1:]
    return Figure(statistics.median(f.seconds for f in figures), max(f.megabytes for f in figures))


def run(job: Job) -> Figure:
    with tempfile.TemporaryDirectory(dir=CACHE) as place:
        command = [part.format(out=f"{place}/out") for part in job.command]
        with tempfile.TemporaryFile() as log:
            started = time.perf_counter()
            child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.perf_counter() - started
            if status:
                log.seek(0)
                raise SystemExit(f"{job.label} failed:\n{log.read().decode(errors='replace')[-2000:]}")
    return Figure(seconds, usage.ru_maxrss / 1000)


def environment(name: str, *packages: str) -> str:
    """The Python of an environment that holds `packages`, made on first use."""
    folder = CACHE / name
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "-q"]
        subprocess.run([*pip, "torch==2.13.0"], check=True)
        subprocess.run([*pip, *packages], check=True)
        (folder / "ready").touch()
    return str(folder / "bin" / "python")


def peers(checkpoint: str) -> list[Job]:
    genai = environment("genai", "onnxruntime-genai==0.18.0", "transformers==5.24.0", "onnx", "onnx-ir", "accelerate")
    optimum = environment("optimum", "optimum-onnx[onnxruntime]==0.1.0")
    builder = (genai, "-m", "onnxruntime_genai.models.builder", "-m", checkpoint, "-o", "{out}", "-e", "cpu")
    return [
        Job("onnxruntime-genai 0.18.0, FP32", (*builder, "-p", "fp32", "-c", "{out}-cache")),
        Job("onnxruntime-genai 0.18.0, INT4 RTN", (*builder, "-p", "int4", "-c", "{out}-cache")),
        Job(
            "optimum-onnx 0.1.0, FP32",
            (
                optimum, "-m", "optimum.commands.optimum_cli", "export", "onnx", "--model", checkpoint,
                "--task", "text-generation-with-past", "--no-post-process", "{out}",
            ),
        ),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="SmolLM2 as an ordinary checkpoint folder")
    parser.add_argument("--peers", action="store_true", help="time the peers too")
    parser.add_argument("--large", action="store_true", help="also a sparse Llama-70B-shaped checkpoint of 141 GB")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    trtbuild = str(Path(sys.executable).parent / "trtbuild")
    export = (trtbuild, "export", arguments.checkpoint, "--out", "{out}", "--json")
    jobs = [
        Job("trtbuild export, FP32", (*export, "--precision", "fp32")),
        Job("trtbuild export, INT4 RTN", (*export, "--precision", "int4")),
    ]
    if arguments.large:
        large = CACHE / "llama-70b-sparse"
        if not large.exists():
            subprocess.run([sys.executable, str(ROOT / "scripts" / "synthetic_checkpoint.py"), str(large)], check=True)
        jobs.append(
            Job("trtbuild export, BF16, 141 GB in 30 files", (trtbuild, "export", str(large), "--out", "{out}"))
        )
    if arguments.peers:
        jobs += peers(arguments.checkpoint)
    figures = {job.label: measure(job, arguments.runs) for job in jobs}
    print(f"{'':44} {'wall':>8} {'peak':>9} {'against trtbuild':>22}")
    for label, figure in figures.items():
        ours = figures["trtbuild export, INT4 RTN" if "INT4" in label else "trtbuild export, FP32"]
        ratio = "" if "trtbuild" in label else f"{figure.seconds / ours.seconds:.1f} x time, "
        ratio += "" if "trtbuild" in label else f"{figure.megabytes / ours.megabytes:.1f} x memory"
        print(f"{label:44} {figure.seconds:6.2f} s {figure.megabytes:6.0f} MB {ratio:>22}")


if __name__ == "__main__":
    main()
