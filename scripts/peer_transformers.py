"""What one writes first to serve a model in Triton: a Python model around transformers' `generate`.

bench_serving.py copies this file into a model's folder as model.py. Requests that Triton's batcher puts together
are one padded batch, and each is answered when all are done. `generate` runs in a process of its own, by the Python
that has transformers (the one inside Triton may be another release, which cannot load its extension modules); a line of
JSON goes there and back for each batch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        given = json.loads(args["model_config"])["parameters"]
        python, checkpoint, dtype = (given[name]["string_value"] for name in ("python", "checkpoint", "dtype"))
        command = [python, __file__, checkpoint, dtype]
        self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={})
        assert self._worker.stdin is not None and self._worker.stdout is not None
        self._to, self._from = self._worker.stdin, self._worker.stdout
        self._from.readline()  # it is ready

    def execute(self, requests: list[Any]) -> list[Any]:
        import numpy as np
        import triton_python_backend_utils as pb_utils

        def value(request: Any, name: str) -> Any:
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item(0)

        asked = {
            "texts": [value(r, "text_input").decode() for r in requests],
            "tokens": value(requests[0], "max_tokens"),
        }
        print(json.dumps(asked), file=self._to, flush=True)
        answers = json.loads(self._from.readline())
        tensors = [pb_utils.Tensor("text_output", np.array([[answer]], dtype=object)) for answer in answers]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]

    def finalize(self) -> None:
        self._to.close()
        self._worker.wait()


def work(checkpoint: str, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        batch, count = tokenizer(asked["texts"], return_tensors="pt", padding=True), asked["tokens"]
        with torch.inference_mode():
            ids = model.generate(**batch, max_new_tokens=count, min_new_tokens=count, do_sample=False)
        answers = tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:])
