"""What the package promises about itself: it stands alone, starts fast, and its declarations hold together."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trtbuild.serving
from tests.serving.conftest import config
from trtbuild.graph import contract
from trtbuild.serving import graph_names, interface
from trtbuild.serving.config import Backend, Profile, ServingConfig

PACKAGE = Path(trtbuild.serving.__file__).parent
ALLOWED = {"numpy", "tokenizers", "jinja2", "onnxruntime", "triton_python_backend_utils"}


def test_it_imports_nothing_that_an_emitted_repository_lacks() -> None:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            for name in (name.split(".")[0] for name in names):
                assert name in ALLOWED or name in sys.stdlib_module_names, f"{file.name} imports {name}"


def test_a_copy_of_it_answers_without_trtbuild(version_folder: Path, tmp_path: Path) -> None:
    """As in an emitted repository: under another name, in a process that cannot see trtbuild, torch or transformers."""
    shutil.copytree(PACKAGE, tmp_path / "trtbuild_serving", ignore=shutil.ignore_patterns("__pycache__"))
    program = f"""
import sys, threading, time
start = time.perf_counter()
for name in ("trtbuild", "torch", "transformers"):
    sys.modules[name] = None
from pathlib import Path
from trtbuild_serving.config import ServingConfig
from trtbuild_serving.engine import Engine
from trtbuild_serving.runners import open_runner
from trtbuild_serving.sampling import SamplingParams
from trtbuild_serving.tokenizer import Tokenizer
folder = Path({str(version_folder)!r})
config, tokenizer = ServingConfig.load(folder / "serving.json"), Tokenizer(folder)
engine = Engine(config, open_runner(config, folder, print), tokenizer.token_bytes, print)
engine.start()
over, text = threading.Event(), []
def emit(output):
    text.append(output.text)
    output.finish_reason and over.set()
prompt = tokenizer.encode_chat(tokenizer.render_chat([{{"role": "user", "content": "hi"}}]))
engine.submit(prompt, SamplingParams(max_tokens=5), emit)
over.wait(30)
engine.stop(5)
print(len("".join(text)) > 0, time.perf_counter() - start)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    answered, seconds = ran.stdout.splitlines()[-1].split()
    assert answered == "True" and float(seconds) < 5


def test_the_graphs_names_are_the_contracts() -> None:
    for name in ("INPUT_IDS", "POSITION_IDS", "CACHE_POSITIONS", "LOGITS_POSITIONS", "SEQUENCE_LENGTHS", "LOGITS"):
        assert getattr(graph_names, name) == getattr(contract, name)
    for name in ("past_key", "past_value", "present_key", "present_value"):
        assert getattr(graph_names, name)(13) == getattr(contract, name)(13)
    for values, per_layer in ((32, 2), (0, 1)):
        tensors = contract.cache_tensors(3, 48, values)
        assert graph_names.cache_tensors(3, 48, values) == tensors and len(tensors) == 3 * per_layer
        assert tensors[0] == (contract.past_key(0), contract.present_key(0), 48)
        assert tensors[-1].width == values or 48


def test_serving_json_is_read_as_it_was_written() -> None:
    backend = Backend("tensorrt", "model.plan", "float16", "10.16.1", ("sm_89",), version_compatible=True)
    written = config(profiles=(Profile("decode", (1, 4, 8), (1, 1, 1), (1, 512, 2048)),), backends=(backend,))
    assert ServingConfig.from_json(written.to_json()) == written
    for text, message in ((written.to_json().replace("slots", "rows"), "rows"), ('{"format": 9}', "format 9")):
        with pytest.raises(ValueError, match=message):
            ServingConfig.from_json(text)


def test_the_interface_is_tensorrt_llms() -> None:
    inputs = {spec.name: spec for spec in interface.INPUTS}
    assert len(inputs) == len(interface.INPUTS)
    # triton_backend/all_models/inflight_batcher_llm/ensemble/config.pbtxt of NVIDIA/TensorRT-LLM.
    assert {
        "text_input", "max_tokens", "stream", "temperature", "top_k", "top_p", "seed", "repetition_penalty",
        "frequency_penalty", "presence_penalty", "stop_words", "min_tokens", "return_log_probs", "num_return_sequences",
        "exclude_input_in_output",
    } <= set(inputs)  # fmt: skip
    # That file's until 2024, and what Triton's OpenAI front end sends to a model that is not vLLM's.
    assert {"random_seed", "frequency_penalty", "presence_penalty", "seed"} <= set(inputs)
    assert all(spec.optional for spec in interface.INPUTS) and not any(spec.optional for spec in interface.OUTPUTS)
    assert [(spec.name, spec.data_type, spec.dims) for spec in interface.OUTPUTS] == [
        ("text_output", "TYPE_STRING", (1,)),
        ("finish_reason", "TYPE_STRING", (1,)),
        ("output_ids", "TYPE_INT32", (-1,)),
        ("sequence_index", "TYPE_INT32", (1,)),
        ("prompt_tokens", "TYPE_INT32", (1,)),
        ("cached_tokens", "TYPE_INT32", (1,)),
        ("output_log_probs", "TYPE_FP32", (-1,)),
        ("top_log_probs", "TYPE_STRING", (1,)),
    ]
