"""config.pbtxt of the LLM model."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.triton.conftest import SLOTS, serving_config
from trtbuild.errors import InputError
from trtbuild.serving.interface import INPUTS, OUTPUTS
from trtbuild.triton.config import WARMUP_FILES, llm_config, read_config, write_config


def parsed() -> pb.ModelConfig:
    return text_format.Parse(write_config(llm_config(serving_config())), pb.ModelConfig())


def test_it_is_a_decoupled_python_model_with_one_instance() -> None:
    config = parsed()
    assert (config.name, config.backend, config.max_batch_size) == ("tiny", "python", SLOTS)
    assert config.model_transaction_policy.decoupled
    assert [(group.count, group.kind) for group in config.instance_group] == [(1, pb.ModelInstanceGroup.KIND_CPU)]


def test_inputs_and_outputs_are_the_interface() -> None:
    config = parsed()
    for tensors, specs in ((config.input, INPUTS), (config.output, OUTPUTS)):
        assert [(t.name, pb.DataType.Name(t.data_type), tuple(t.dims)) for t in tensors] == [
            (s.name, s.data_type, s.dims) for s in specs
        ]
    assert all(tensor.optional for tensor in config.input)


def test_tritons_queue_knows_no_priorities_which_would_make_it_stall() -> None:
    config = parsed()
    assert config.HasField("dynamic_batching")
    assert config.dynamic_batching == pb.ModelDynamicBatching()


def test_the_warm_up_is_a_real_request() -> None:
    (warmup,) = parsed().model_warmup
    assert {name: data.input_data_file for name, data in warmup.inputs.items()} == {
        "text_input": "text_input",
        "max_tokens": "max_tokens",
    }
    assert WARMUP_FILES == {"text_input": b"\x05\0\0\0Hello", "max_tokens": b"\x02\0\0\0"}


def test_the_same_config_gives_the_same_text() -> None:
    assert write_config(llm_config(serving_config())) == write_config(llm_config(serving_config()))
    assert read_config(write_config(llm_config(serving_config())), "x") == llm_config(serving_config())


def test_an_unknown_field_is_refused_with_its_place() -> None:
    with pytest.raises(InputError, match=r"m/config.pbtxt is not .* 2:1.*instance_groups"):
        read_config('name: "m"\ninstance_groups [ ]', "m/config.pbtxt")
