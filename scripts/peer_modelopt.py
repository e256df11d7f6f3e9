"""ModelOpt's INT4 AWQ (awq_lite) of a checkpoint, for bench_calibration.py; runs in an environment of its own.

python peer_modelopt.py CHECKPOINT TOKENS.npy WINDOWS.npy BLOCK -> JSON: seconds, megabytes, perplexity
"""

from __future__ import annotations

import copy
import json
import math
import sys
import time
from pathlib import Path

import modelopt.torch.quantization as mtq
import numpy as np
import torch
from transformers import AutoModelForCausalLM


def perplexity(model: torch.nn.Module, windows: torch.Tensor) -> float:
    losses = []
    with torch.no_grad():
        for row in windows:
            predicted = model(row[None]).logits[0, :-1].float().log_softmax(-1)
            losses.append(-predicted.gather(1, row[1:, None]).mean().item())
    return math.exp(sum(losses) / len(losses))


def main() -> None:
    started = time.perf_counter()
    checkpoint, tokens, windows, block = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    samples = torch.from_numpy(np.load(tokens))

    def forward(model: torch.nn.Module) -> None:
        with torch.no_grad():
            for first in range(0, len(samples), 4):
                model(samples[first : first + 4])

    config = copy.deepcopy(mtq.INT4_AWQ_CFG)
    set_blocks(config, int(block))
    mtq.quantize(model, config, forward)
    seconds = time.perf_counter() - started
    status = Path("/proc/self/status").read_text().splitlines()
    megabytes = next(int(line.split()[1]) / 1000 for line in status if line.startswith("VmHWM"))
    result = {"seconds": seconds, "megabytes": megabytes}
    result["perplexity"] = perplexity(model, torch.from_numpy(np.load(windows)))
    print(json.dumps(result))


def set_blocks(entry: object, block: int) -> None:
    """Set every block size of the last axis in ModelOpt's nested configuration."""
    if isinstance(entry, dict):
        for key, value in entry.items():
            if key == -1:
                entry[key] = block
            else:
                set_blocks(value, block)
    elif isinstance(entry, list):
        for value in entry:
            set_blocks(value, block)


if __name__ == "__main__":
    main()
