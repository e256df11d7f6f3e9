"""The engine on a real model: SmolLM2 answers as transformers does, eight at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graph.harness import write_graph
from tests.serving.test_engine import Answer
from trtbuild.serving.config import Backend, Cache, ServingConfig
from trtbuild.serving.engine import Engine
from trtbuild.serving.runners import open_runner
from trtbuild.serving.sampling import SamplingParams
from trtbuild.serving.tokenizer import Tokenizer

QUESTIONS = [
    "What is the capital of France?", "Name three colours.", "What is 2 + 2?", "Write a haiku about the sea.",
    "Who wrote Hamlet?", "Why is the sky blue?", "Translate 'good morning' into French.", "What is an emoji?",
]  # fmt: skip
TOKENS = 32


@pytest.mark.slow
def test_eight_at_a_time_are_what_transformers_generates(smollm2: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    file = write_graph(smollm2, capacity=512)
    tokenizer = Tokenizer(smollm2)
    config = ServingConfig(
        "smollm2", 49152, Cache(30, 8, 3, 512, 64, 64), 16, (2,), (), (Backend("onnxruntime", file.name, "float32"),)
    )
    prompts = [
        tokenizer.encode_chat(tokenizer.render_chat([{"role": "user", "content": question}])) for question in QUESTIONS
    ]
    engine = Engine(config, open_runner(config, file.parent, print), tokenizer.token_bytes, print)
    engine.start()
    answers = []
    for prompt in prompts:
        answers.append(Answer())
        engine.submit(prompt, SamplingParams(max_tokens=TOKENS), answers[-1].take)
    for answer in answers:
        answer.wait()
    engine.stop(5)

    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False)[0, len(prompt) :]
        assert answer.tokens == expected.tolist()
    assert answers[0].text == "The capital of France is Paris." and answers[0].reason == "stop"
    assert np.mean([len(answer.tokens) for answer in answers]) > 8
