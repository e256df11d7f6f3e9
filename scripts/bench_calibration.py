"""INT4 calibration of a checkpoint, whole processes, next to ModelOpt's AWQ on the same text, in the same run.

    python scripts/bench_calibration.py CHECKPOINT TEXT [--peers] [--blocks 32,64] [--methods gptq,awq+gptq]

The first 8 windows of 1024 tokens of TEXT are what perplexity is measured on; calibration takes 32 samples of 512
tokens from its second half. With --peers, ModelOpt (in an environment of its own under .cache/, made once, some
gigabytes) calibrates with its awq_lite on the very same samples.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from bench_export import CACHE, environment  # noqa: E402
from bench_families import peak_megabytes  # noqa: E402

from trtbuild.calibration.evaluation import windows  # noqa: E402
from trtbuild.calibration.samples import SampleOptions, read_samples  # noqa: E402
from trtbuild.checkpoint import open_checkpoint  # noqa: E402
from trtbuild.store import default_cache  # noqa: E402

TRTBUILD = str(Path(sys.executable).parent / "trtbuild")
SAMPLES, LENGTH, WINDOWS, WINDOW = 32, 512, 8, 1024
METHODS = ("rtn", "rtn-clip", "awq", "gptq", "awq+gptq")


def timed(command: list[str]) -> tuple[float, float, str]:
    """Seconds, peak MB and standard output of a process."""
    peak, started = 0.0, time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        while child.poll() is None:
            peak = max(peak, peak_megabytes(child.pid))
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} failed")
        out.seek(0)
        return seconds, peak, out.read()


def ours(
    checkpoint: str, text: Path, data: Path, method: str, block: int, place: Path
) -> tuple[float, float, float, float]:
    """Seconds, peak MB, bits a weight and the ratio of perplexities."""
    out = place / f"{method}-{block}"
    command = [TRTBUILD, "calibrate", checkpoint, "--method", method, "--block-size", str(block), "--json"]
    command += ["--data", str(data), "--samples", str(SAMPLES), "--length", str(LENGTH), "--out", str(out)]
    seconds, peak, result = timed(command)
    command = [TRTBUILD, "evaluate", str(out), "--text", str(text), "--reference", checkpoint, "--json"]
    evaluation = json.loads(timed([*command, "--windows", str(WINDOWS), "--length", str(WINDOW)])[2])
    return seconds, peak, json.loads(result)["bits_per_weight"], evaluation["ratio"]


def modelopt(checkpoint: str, tokens: Path, rows: Path, block: int) -> tuple[float, float, float]:
    """Seconds, peak MB and the perplexity."""
    python = environment("modelopt", "nvidia-modelopt==0.47.0", "transformers==4.57.1", "accelerate")
    script = str(ROOT / "scripts" / "peer_modelopt.py")
    done = subprocess.run(
        [python, script, checkpoint, str(tokens), str(rows), str(block)],
        capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return found["seconds"], found["megabytes"], found["perplexity"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("text", type=Path)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--blocks", default="32,64")
    parser.add_argument("--methods", default=",".join(METHODS))
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        place, blocks = Path(folder), [int(block) for block in arguments.blocks.split(",")]
        text = arguments.text.read_text(encoding="utf-8")
        data = place / "calibration.txt"
        data.write_text(text[len(text) // 2 :], encoding="utf-8")
        checkpoint = open_checkpoint(arguments.checkpoint, cache=default_cache())
        np.save(place / "tokens.npy", read_samples(SampleOptions((data,), SAMPLES, LENGTH), checkpoint).tokens)
        np.save(place / "windows.npy", windows(arguments.text, checkpoint, WINDOWS, WINDOW))
        print(f"{'':28}{'wall':>9}{'peak':>10}{'bits':>7}{'perplexity / FP32':>20}")
        for block in blocks:
            for method in arguments.methods.split(","):
                seconds, peak, bits, ratio = ours(arguments.checkpoint, arguments.text, data, method, block, place)
                print(
                    f"{f'trtbuild {method}, {block}':28}{seconds:7.1f} s{peak:7.0f} MB{bits:7.2f}{ratio:20.4f}",
                    flush=True,
                )
            if arguments.peers:
                seconds, peak, own = modelopt(arguments.checkpoint, place / "tokens.npy", place / "windows.npy", block)
                command = [TRTBUILD, "evaluate", arguments.checkpoint, "--reference", arguments.checkpoint, "--json"]
                command += ["--text", str(arguments.text), "--windows", str(WINDOWS), "--length", str(WINDOW)]
                base = json.loads(timed(command)[2])["reference_perplexity"]
                label = f"ModelOpt awq_lite, {block}"
                print(f"{label:28}{seconds:7.1f} s{peak:7.0f} MB{4 + 16 / block:7.2f}{own / base:20.4f}", flush=True)


if __name__ == "__main__":
    main()
