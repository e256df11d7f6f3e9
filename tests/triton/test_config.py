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


def test_three_priorities_the_middle_one_by_default_each_with_a_bounded_queue() -> None:
    batching = parsed().dynamic_batching
    assert (batching.priority_levels, batching.default_priority_level) == (3, 2)
    assert sorted(batching.priority_queue_policy) == [1, 2, 3]
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        assert policy.timeout_action == pb.ModelQueuePolicy.REJECT
        assert policy.allow_timeout_override
        assert policy.max_queue_size > 0
        assert policy.default_timeout_microseconds > 0
    assert batching.default_queue_policy == batching.priority_queue_policy[2]
    waits = [batching.priority_queue_policy[level].default_timeout_microseconds for level in (1, 2, 3)]
    assert waits == sorted(waits)


def test_without_priorities_the_queue_has_no_policy_at_all() -> None:
    config = llm_config(serving_config(), priorities=False)
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
