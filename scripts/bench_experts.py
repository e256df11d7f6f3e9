"""What computing all experts for every token costs on ONNX Runtime, next to transformers, which computes the chosen.

    python scripts/bench_experts.py [--experts 64] [--chosen 8] [--runs 5]

One layer of a Qwen3-MoE of random weights, FP32 and INT4, one token at a time and 128 tokens at once, on this CPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.families.case import Case  # noqa: E402
from tests.families.models import Reference, save_checkpoint  # noqa: E402
from tests.graph.harness import Decoder, read_binding  # noqa: E402
from trtbuild.dtypes import DType  # noqa: E402
from trtbuild.graph.decoder import GraphOptions, author_decoder  # noqa: E402
from trtbuild.graph.save import save_graph  # noqa: E402
from trtbuild.quantize.rtn import Int4Options, quantize_to_int4  # noqa: E402


def median_ms(run: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times[1:])


def whole_prompt(decoder: Decoder, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    return decoder.step(tokens[None], [0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--chosen", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    fields = {
        "hidden_size": 1024, "moe_intermediate_size": 512, "num_hidden_layers": 1, "num_experts": arguments.experts,
        "num_experts_per_tok": arguments.chosen, "norm_topk_prob": True, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 64,
    }  # fmt: skip
    case = Case("bench", "", "", "Qwen3MoeConfig", fields)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save_checkpoint(case, folder)
        reference, binding = Reference(case, folder), read_binding(folder)
        options = GraphOptions(DType.F32, 256)
        save_graph(author_decoder(binding, options), Path(place) / "fp32" / "model.onnx")
        quantised = quantize_to_int4(binding, Int4Options(DType.F32), Path(place) / "int4.safetensors", {})
        save_graph(author_decoder(quantised.binding, options, quantised.quantised), Path(place) / "int4" / "model.onnx")
        print(f"{arguments.chosen} of {arguments.experts} experts {'':10} {'1 token':>10} {'128 tokens':>11}")
        rows: dict[str, Callable[[NDArray[np.int64]], object]] = {"transformers, FP32, the chosen": reference.logits}
        for name in ("fp32", "int4"):
            decoder = Decoder(Path(place) / name / "model.onnx")
            rows[f"ONNX Runtime, {name.upper()}, all"] = partial(whole_prompt, decoder)
        for label, run in rows.items():
            times = [median_ms(partial(run, np.arange(3, 3 + n)), arguments.runs) for n in (1, 128)]
            print(f"{label:32} {times[0]:7.1f} ms {times[1]:8.1f} ms")


if __name__ == "__main__":
    main()
