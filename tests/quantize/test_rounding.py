"""INT4 rounding and packing against the formulas and ONNX's own packing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from trtbuild.dtypes import DType
from trtbuild.quantize.rounding import pack_transposed, round_to, round_to_int4, unpack


def test_by_hand() -> None:
    """The peak goes to 7 (or -7), a half goes to the even neighbour."""
    weights = np.zeros((1, 32), np.float32)
    weights[0, :5] = [7.0, -3.5, 2.5, 0.4, -7.0]
    rounded = round_to_int4(weights, 32, DType.F32)
    assert rounded.scales.tolist() == [[1.0]]
    assert rounded.values[0, :5].tolist() == [7, -4, 2, 0, -7]


def test_blocks_have_scales_of_their_own() -> None:
    weights = np.concatenate([np.full((2, 32), 0.7), np.full((2, 32), -70.0)], axis=1).astype(np.float32)
    rounded = round_to_int4(weights, 32, DType.F32)
    np.testing.assert_allclose(rounded.scales, [[0.1, 10.0]] * 2, rtol=1e-6)
    assert (rounded.values[:, :32] == 7).all() and (rounded.values[:, 32:] == -7).all()


def test_the_error_is_at_most_half_a_scale() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    for dtype in (DType.F32, DType.F16, DType.BF16):
        rounded = round_to_int4(weights, 64, dtype)
        scales = np.repeat(rounded.scales, 64, axis=1)
        error = np.abs(rounded.values * scales - weights)
        # A scale rounded down puts the peak a little beyond 7.5 scales at worst: BF16 rounds by 2^-9.
        assert (error <= scales * (0.5 + 7 * 2**-8)).all()


def test_a_block_of_zeros_keeps_a_scale_above_zero() -> None:
    rounded = round_to_int4(np.zeros((2, 64), np.float32), 32, DType.F16)
    assert (rounded.scales == 2.0**-14).all() and (rounded.values == 0).all()


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_packing_is_onnx_int4(rows: int, width: int, seed: int) -> None:
    """ONNX's own writer packs the transposed matrix to the same bytes, and the inverse gives the values back."""
    values = np.random.default_rng(seed).integers(-8, 8, (2 * rows, width)).astype(np.int8)
    packed = pack_transposed(values)
    wanted = helper.make_tensor("w", TensorProto.INT4, values.T.shape, values.T.ravel().tolist())
    assert packed.tobytes() == wanted.raw_data or packed.ravel().tolist() == [v & 0xFF for v in wanted.int32_data]
    assert (unpack(packed) == values.T).all()
    assert numpy_helper.to_array(wanted).astype(np.int8).tolist() == values.T.tolist()


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_rounding_to_a_type_is_torchs(dtype: DType) -> None:
    import torch

    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    kind = torch.float16 if dtype is DType.F16 else torch.bfloat16
    np.testing.assert_array_equal(round_to(values, dtype), torch.from_numpy(values).to(kind).float().numpy())
