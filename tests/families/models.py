"""Small random checkpoints, and what transformers makes of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.families.case import Case

SMALL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip
"""Fields that most config classes have; a case's None takes one away."""


def random_model(config: Any, seed: int = 0) -> Any:
    """A model whose every parameter is random, scaled so that the logits are of order 10."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(torch.float32).eval()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.copy_(0.1 * torch.randn_like(buffer))
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and name.endswith("weight"):
                mean = 0.0 if config.model_type in UNIT_OFFSET else 1.0
                parameter.copy_(mean + 0.1 * torch.randn_like(parameter))
            elif parameter.ndim == 1:
                parameter.copy_(0.5 * torch.randn_like(parameter))
            elif any(part in name for part in ("lm_head", "embed", "wte")):
                parameter.copy_(torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[-1] ** 0.5)
    return model


UNIT_OFFSET = {"gemma", "gemma2", "gemma3_text"}
"""Families whose norms add 1 to the stored weight."""


def make_config(case: Case) -> Any:
    import transformers

    fields = {name: value for name, value in {**SMALL, **case.fields}.items() if value is not None}
    return getattr(transformers, case.config)(**fields)


def save_checkpoint(case: Case, folder: Path, tokenizer: Path | None = None) -> None:
    """The case's checkpoint as its library writes it, in several shards."""
    if case.save is not None:
        case.save(folder)
    else:
        random_model(make_config(case)).save_pretrained(folder, max_shard_size="100KB")
    if tokenizer is not None:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (tokenizer / name).exists():
                shutil.copy(tokenizer / name, folder)


class Reference:
    """The forward pass that judges: transformers', or the case's own."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self._model: Any = None

    @property
    def model(self) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        if self._model is None:
            self._model = AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=torch.float32, attn_implementation=self.case.attention
            ).eval()
        return self._model

    def logits(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """f32 [tokens, vocab] of one row, all of it seen at once."""
        if self.case.logits is not None:
            return self.case.logits(self.folder, tokens[None])[0]
        import torch

        with torch.no_grad():
            logits: NDArray[np.float32] = self.model(torch.from_numpy(tokens[None]), use_cache=False).logits[0].numpy()
        return logits

    def continued(self, tokens: NDArray[np.int64], prompt: int) -> NDArray[np.float32]:
        """f32 [tokens, vocab]: of the prompt as one, and of each later token as the last of all before it."""
        if self.case.grows:
            return self._with_cache(tokens, prompt)
        if self.case.logits is not None or "longrope" not in str(self.case.fields):
            return np.concatenate([self.logits(tokens[:prompt]), self.logits(tokens)[prompt:]])
        later = [self.logits(tokens[: end + 1])[-1] for end in range(prompt, len(tokens))]
        return np.stack([*self.logits(tokens[:prompt]), *later])

    def _with_cache(self, tokens: NDArray[np.int64], prompt: int) -> NDArray[np.float32]:
        import torch
        from transformers import DynamicCache

        self._model = None  # dynamic RoPE remembers the longest sequence that it saw
        cache, pieces = DynamicCache(), [tokens[:prompt], *(tokens[i : i + 1] for i in range(prompt, len(tokens)))]
        with torch.no_grad():
            rows = [self.model(torch.from_numpy(piece[None]), past_key_values=cache).logits[0] for piece in pieces]
        result: NDArray[np.float32] = torch.cat(rows).numpy()
        return result
