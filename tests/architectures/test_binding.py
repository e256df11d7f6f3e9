"""Tensors that are missing, extra or misshapen are refused by name and role."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.graph.harness import read_binding
from trtbuild.architectures import Role, known_model_types
from trtbuild.errors import InputError
from trtbuild.exporting import read_weights
from trtbuild.options import ExportOptions
from trtbuild.progress import Silent

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def checkpoint(tiny_checkpoint: Callable[..., Path]) -> Path:
    return tiny_checkpoint()


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def edit_config(folder: Path, **fields: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_every_role_is_bound(checkpoint: Path) -> None:
    binding = read_binding(checkpoint)
    assert binding.tensor(Role.Q, 1).name == Q
    assert binding.tensor(Role.Q, 1).shape == (64, 64)
    assert binding.bias(Role.Q, 1) is None
    assert len(list(binding.linears())) == 2 * 7


def test_missing(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.pop(Q))
    with pytest.raises(InputError, match=rf"'{Q}' \(q, shape \[64, 64\]\) is missing"):
        read_binding(checkpoint)


def test_misshapen(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({Q: torch.zeros(64, 32)}))
    with pytest.raises(InputError, match=r"\(q\) has the shape \[64, 32\], and config.json asks for \[64, 64\]"):
        read_binding(checkpoint)


def test_extra(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({"model.layers.1.mlp.router.weight": torch.zeros(4, 64)}))
    with pytest.raises(InputError, match="'model.layers.1.mlp.router.weight' of shape .* has no role in a llama model"):
        read_binding(checkpoint)


def test_a_buffer_that_everybody_recomputes_is_no_extra(checkpoint: Path) -> None:
    edit_tensors(
        checkpoint, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    )
    read_binding(checkpoint)


def test_a_weight_in_another_type(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({Q: torch.zeros(64, 64, dtype=torch.float8_e4m3fn)}))
    with pytest.raises(InputError, match=f"'{Q}' is stored as F8_E4M3"):
        read_binding(checkpoint)


def test_tied_heads(checkpoint: Path) -> None:
    """Tied and absent, tied and present, untied and absent."""
    edit_config(checkpoint, tie_word_embeddings=True)
    assert read_binding(checkpoint).spec.tied_embeddings
    edit_tensors(checkpoint, lambda tensors: tensors.pop("lm_head.weight"))
    assert read_binding(checkpoint).spec.tied_embeddings
    edit_config(checkpoint, tie_word_embeddings=False)
    with pytest.raises(InputError, match="'lm_head.weight' .* is missing"):
        read_binding(checkpoint)


def test_unknown_model_type(checkpoint: Path) -> None:
    edit_config(checkpoint, model_type="mamba")
    with pytest.raises(InputError, match=f"'mamba' is not known. Known are {', '.join(known_model_types())}"):
        read_binding(checkpoint)


def test_quantised_by_a_method_that_is_not_known(checkpoint: Path) -> None:
    edit_config(checkpoint, quantization_config={"quant_method": "mxfp4"})
    with pytest.raises(InputError, match=r"already quantised \(mxfp4\)"):
        read_weights(checkpoint, ExportOptions(), Silent())
