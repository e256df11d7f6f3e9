"""Every family's checkpoint in shards: it loads whole, and a tensor that is missing, extra or misshapen is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.families.conftest import Model
from trtbuild.architectures import read_decoder
from trtbuild.architectures.binding import expected_tensors
from trtbuild.checkpoint import open_checkpoint
from trtbuild.checkpoint.base import Checkpoint, TensorRef
from trtbuild.errors import InputError


def load(model: Model) -> Checkpoint:
    return open_checkpoint(model.folder, cache=model.folder.parent / "cache")


def without(checkpoint: Checkpoint, name: str, *instead: TensorRef) -> Checkpoint:
    tensors = {key: ref for key, ref in checkpoint.tensors.items() if key != name}
    return replace(checkpoint, tensors={**tensors, **{ref.name: ref for ref in instead}})


def test_every_shard_is_used(model: Model) -> None:
    checkpoint = load(model)
    assert len(checkpoint.weight_files) > 1
    binding = read_decoder(checkpoint)
    assert {ref.file for ref in binding.tensors.values()} == set(checkpoint.weight_files)


def test_each_tensor_is_missed_by_name_and_role(model: Model) -> None:
    checkpoint = load(model)
    binding = read_decoder(checkpoint)
    for name, (need, shape) in expected_tensors(binding.spec, binding.recipe, binding.prefix).items():
        with pytest.raises(InputError) as caught:
            read_decoder(without(checkpoint, name))
        text = str(caught.value)
        assert f"{name!r} ({need.role.name.lower()}" in text or "embed" in name or "wte" in name, text
        assert str(list(shape)) in text
        assert "is missing" in text


def test_each_misshapen_tensor_is_refused(model: Model) -> None:
    checkpoint = load(model)
    for name, ref in read_decoder(checkpoint).tensors.items():
        wrong = replace(ref, shape=(*ref.shape[:-1], ref.shape[-1] + 1))
        with pytest.raises(InputError) as caught:
            read_decoder(without(checkpoint, name, wrong))
        assert f"{name!r} (" in str(caught.value)
        assert f"has the shape {list(wrong.shape)}" in str(caught.value)
        assert f"asks for {list(ref.shape)}" in str(caught.value)


def test_an_extra_tensor_is_refused(model: Model) -> None:
    checkpoint = load(model)
    some = next(iter(checkpoint.tensors.values()))
    extra = replace(some, name="model.layers.0.adapter.weight")
    with pytest.raises(InputError, match=r"'model\.layers\.0\.adapter\.weight' of shape .* has no role"):
        read_decoder(without(checkpoint, "", extra))
