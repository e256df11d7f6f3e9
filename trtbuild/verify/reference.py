"""transformers' own forward pass in FP32: what every graph is held against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.checkpoint import Checkpoint
from trtbuild.errors import BuildError, InputError


class Reference:
    """The checkpoint's model in transformers, FP32, without remote code and without pickles."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        try:
            import torch
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging
        except ImportError as error:
            raise BuildError(
                f"`verify` compares with transformers on torch, and {error.name} is not installed: "
                "pip install 'trtbuild[verify]'."
            ) from error
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._torch = torch
        folder = _folder(checkpoint)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True, local_files_only=True
        ).eval()

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """f32 [tokens, vocab]."""
        self._forget()
        with self._torch.no_grad():
            logits: NDArray[np.float32] = self.model(self._torch.tensor([list(tokens)])).logits[0].numpy()
        return logits

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens after `prompt`, whatever they are: nothing stops it early."""
        from transformers import GenerationConfig

        plain = GenerationConfig(do_sample=False, max_new_tokens=count, min_new_tokens=count, pad_token_id=0)
        tokens = self._torch.tensor([list(prompt)])
        mask = self._torch.ones_like(tokens)
        self.model.generation_config = plain
        self._forget()
        sequence = self.model.generate(tokens, attention_mask=mask, generation_config=plain)[0]
        return [int(token) for token in sequence[len(prompt) :]]

    def _forget(self) -> None:
        """Dynamic NTK in transformers keeps the frequencies of the longest sequence it has seen, whosever that was,
        until a short one comes."""
        with self._torch.no_grad():
            self.model(self._torch.tensor([[0]]))


def _folder(checkpoint: Checkpoint) -> Path:
    folders = {file.parent for file in checkpoint.weight_files}
    if len(folders) != 1:
        raise InputError(f"{checkpoint.name}: its weights lie in {len(folders)} folders; transformers wants one.")
    return folders.pop()
