"""`trtbuild compile` to INT4 and a TensorRT-RTX engine, next to the bare builder on the same graph, in turn.

    python scripts/bench_compile.py MODEL [--runs 3]

The bare builder is a process that parses the ONNX file of the same compile, adds the same two profiles, builds, and
writes the plan. The cache is empty for each run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARE = """
import sys
import tensorrt_rtx as trt

onnx_file, plan = sys.argv[1:]
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
network = builder.create_network(0)
parser = trt.OnnxParser(network, logger)
assert parser.parse_from_file(onnx_file)
config = builder.create_builder_config()
for points in [((1, 1, 1), (4, 1, 512), (8, 1, 2048)), ((1, 1, 1), (1, 128, 512), (1, 512, 2048))]:
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        rest = tuple(tensor.shape)[1:]
        shapes = []
        for batch, tokens, kv in points:
            named = {"input_ids": (batch, tokens), "position_ids": (batch, tokens), "cache_positions": (kv,)}
            named["logits_positions"] = (batch, 1)
            shapes.append(named.get(tensor.name, (batch, *rest)))
        profile.set_shape(tensor.name, *shapes)
    config.add_optimization_profile(profile)
engine = builder.build_serialized_network(network, config)
with open(plan, "wb") as file:
    file.write(engine)
"""


def timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint's folder or a GGUF file")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    trtbuild = str(Path(sys.executable).parent / "trtbuild")
    compiled, bare = [], []
    for _ in range(arguments.runs):
        with tempfile.TemporaryDirectory() as place:
            out = f"{place}/out"
            command = [trtbuild, "compile", arguments.model, "-p", "int4", "--backend", "rtx", "--cache", f"{place}/c"]
            compiled.append(timed([*command, "--out", out]))
            bare.append(timed([sys.executable, "-c", BARE, f"{out}/onnx/model.onnx", f"{place}/plan"]))
            stages = json.loads(Path(out, "timings.json").read_text())["stages"]
    print("stages of the last run: " + ", ".join(f"{stage['name']} {stage['seconds']:.2f} s" for stage in stages))
    ours, theirs = statistics.median(compiled), statistics.median(bare)
    print(f"trtbuild compile {ours:.1f} s, bare builder {theirs:.1f} s (medians of {arguments.runs})")
    overheads = [a - b for a, b in zip(compiled, bare, strict=True)]
    print(f"beyond the builder, run by run: {', '.join(f'{value:+.1f} s' for value in overheads)}")


if __name__ == "__main__":
    main()
