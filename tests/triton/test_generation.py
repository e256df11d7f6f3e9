"""Requests and responses on the wire, against tritonclient's own encoding of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.grpc import service_pb2

from trtbuild.errors import BuildError, InputError
from trtbuild.serving.interface import INPUTS, OUTPUTS
from trtbuild.triton.generation import Chunk, Generation, Sampling, infer_request, inputs, read_chunk

EVERYTHING = Sampling(
    max_tokens=7, min_tokens=2, temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, seed=2**64 - 1,
    repetition_penalty=1.5, frequency_penalty=-0.5, presence_penalty=2.0, logit_bias={5: -1.5}, stop_words=("é", "ab"),
    ignore_eos=False, log_probs=True, top_log_probs=4, n=2,
)  # fmt: skip
NUMPY = {"BYTES": np.object_, "INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}


def test_every_input_of_the_interface_can_be_sent() -> None:
    chat = Generation(messages=[{"role": "user", "content": "é"}], sampling=EVERYTHING, priority=1, queue_timeout=1.5)
    sent = {tensor.name: tensor.values for tensor in inputs(chat)}
    sent |= {tensor.name: tensor.values for tensor in inputs(Generation(prompt="caf\udce9", stream=False))}
    # `seed` is the newer name of `random_seed`; the texts of a chat never include the prompt.
    assert set(sent) == {spec.name for spec in INPUTS} - {"seed", "exclude_input_in_output"}
    assert json.loads(sent["messages"][0]) == [{"role": "user", "content": "é"}]
    assert sent["text_input"] == (b"caf\xe9",)
    assert json.loads(sent["logit_bias"][0]) == {"5": -1.5}
    assert sent["queue_timeout_ms"] == (1500,)
    assert sent["stop_words"] == ("é".encode(), b"ab")


def test_what_is_not_said_is_not_sent() -> None:
    assert [tensor.name for tensor in inputs(Generation(prompt=""))] == ["text_input", "stream"]


def test_the_request_is_the_one_that_tritonclient_makes() -> None:
    generation = Generation(prompt="naïve", sampling=EVERYTHING, priority=3)
    request = infer_request("m", generation, "id-1")
    assert (request.model_name, request.id) == ("m", "id-1")
    assert len(request.inputs) == len(request.raw_input_contents) == 19
    for tensor, message, raw in zip(inputs(generation), request.inputs, request.raw_input_contents, strict=True):
        theirs = grpc.InferInput(tensor.name, [1, len(tensor.values)], tensor.data_type)
        theirs.set_data_from_numpy(np.array([tensor.values], NUMPY[tensor.data_type]))
        assert (message, raw) == (theirs._get_tensor(), theirs._get_content())


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Sampling(max_tokens=2**31), "max_tokens cannot be 2147483648; it is between -2147483648 and 2147483647"),
        (Sampling(seed=-1), "random_seed cannot be -1; it is between 0 and"),
        (Sampling(temperature=1e39), r"temperature cannot be 1e\+39"),
    ],
)
def test_a_number_that_its_type_cannot_hold(sampling: Sampling, message: str) -> None:
    with pytest.raises(InputError, match=message):
        inputs(Generation(prompt="a", sampling=sampling))


@pytest.mark.parametrize("generation", [Generation(), Generation(prompt="a", messages=[])])
def test_a_prompt_or_messages(generation: Generation) -> None:
    with pytest.raises(InputError, match="Give a prompt or messages"):
        inputs(generation)


def response(**outputs: Any) -> Any:
    """A ModelInferResponse, its tensors encoded by tritonclient's own input encoder."""
    message = service_pb2.ModelInferResponse()
    types = {spec.name: spec.data_type.removeprefix("TYPE_").replace("STRING", "BYTES") for spec in OUTPUTS}
    for name, values in outputs.items():
        tensor = grpc.InferInput(name, [1, len(values)], types[name])
        tensor.set_data_from_numpy(np.array([values], NUMPY[types[name]]).reshape(1, -1))
        message.outputs.add(name=name, datatype=types[name], shape=[1, len(values)])
        message.raw_output_contents.append(tensor._get_content())
    return message


def test_a_chunk_has_every_output() -> None:
    top = [[[3, -0.25], [9, -2.0]], [[8, -0.5], [3, -1.0]]]
    found = read_chunk(
        response(
            text_output=["é!".encode()], finish_reason=[b"stop"], output_ids=[3, 8], sequence_index=[1],
            prompt_tokens=[12], cached_tokens=[8], output_log_probs=[-0.25, -0.5],
            top_log_probs=[json.dumps(top).encode()],
        )
    )  # fmt: skip
    tops = (((3, -0.25), (9, -2.0)), ((8, -0.5), (3, -1.0)))
    assert found == Chunk("é!", (3, 8), "stop", 1, 12, 8, (-0.25, -0.5), tops)


def test_a_chunk_of_a_repository_from_before_the_newer_outputs() -> None:
    assert read_chunk(response(text_output=[b""], finish_reason=[b""], output_ids=[])) == Chunk("", (), "")


def test_a_response_without_outputs() -> None:
    with pytest.raises(BuildError, match="without its outputs. Its Python environment may have numpy 2"):
        read_chunk(response())
