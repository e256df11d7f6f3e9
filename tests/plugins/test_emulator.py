"""The emulator itself: it finds what it should, and its operations are those that the PTX ISA describes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.plugins.cases import Array, aligned
from tests.plugins.emulator import built, opened

FAULTS = {
    "RACE": "thread 32: reads shared memory that thread 0 writes, with no barrier between",
    "RACE_IN_WARP": "thread 1: writes shared memory that thread 0 uses, with no barrier between",
    "READ_RACE": "thread 1: writes shared memory that thread 0 uses, with no barrier between",
    "UNWRITTEN": "thread 0: reads shared memory that nothing was written to",
    "UNDER_WAY": "thread 0: reads shared memory that a copy is under way to",
    "OUTSIDE": "thread 63: writes 4 bytes outside every buffer",
    "INPUT": "thread 5: writes to an input",
    "MISALIGNED": "thread 3: an access of global memory not aligned to 16 bytes",
    "SHARED_OUTSIDE": "thread 3: a write of 4 bytes outside shared memory",
    "DIVERGENT": "thread 31: not all lanes of its warp come to this operation",
    "MIXED": "thread 3: its warp is at another operation",
}


@pytest.fixture(scope="module")
def probes() -> ctypes.CDLL:
    return opened(built([Path(__file__).parent / "emulator_probes.cu"]))


def pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def faulty(probes: ctypes.CDLL, number: int) -> tuple[int, str, Array]:
    out, given = aligned((64,), np.float32), aligned((64,), np.float32)
    probes.simt_forget()
    probes.simt_register(out.ctypes.data, out.nbytes, 1)
    probes.simt_register(given.ctypes.data, given.nbytes, 0)
    error = probes.probe_fault(number, pointer(out), pointer(given))
    return error, probes.simt_error().decode(), out


def test_a_right_kernel_is_not_complained_about(probes: ctypes.CDLL) -> None:
    error, message, out = faulty(probes, 0)
    assert (error, message) == (0, "")
    assert out.tolist() == [float(thread ^ 1) for thread in range(64)]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(probes: ctypes.CDLL, fault: str) -> None:
    error, message, _ = faulty(probes, 1 + list(FAULTS).index(fault))
    assert error == 1
    assert message == f"trtbuild::faulty(trtbuild::Fault, float*, float const*), block 0 0 0, {FAULTS[fault]}"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_mma_by_the_layout_of_the_ptx_isa(probes: ctypes.CDLL, dtype: type) -> None:
    """Matrix fragments for mma.m16n8k16 of 16-bit types: the formulas of the PTX ISA, for each register."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-8, 9, shape).astype(np.float32) for shape in ((16, 16), (16, 8)))
    d = random.integers(-99, 99, (16, 8)).astype(np.float32)
    registers_a, registers_b = aligned((32, 8), dtype), aligned((32, 4), dtype)
    registers_d = aligned((32, 4), np.float32)
    for lane in range(32):
        group, own = lane >> 2, lane % 4
        for i in range(8):
            row = group if i < 2 or 4 <= i < 6 else group + 8
            registers_a[lane, i] = a[row, own * 2 + (i & 1) + (8 if i >= 4 else 0)]
        for i in range(4):
            registers_b[lane, i] = b[own * 2 + (i & 1) + (8 if i >= 2 else 0), group]
        for i in range(4):
            registers_d[lane, i] = d[group if i < 2 else group + 8, own * 2 + (i & 1)]
    want = d + a @ b
    assert probes.probe_mma(dtype is not np.float16, *map(pointer, (registers_a, registers_b, registers_d))) == 0
    got = np.zeros((16, 8), np.float32)
    for lane in range(32):
        for i in range(4):
            got[(lane >> 2) + (0 if i < 2 else 8), lane % 4 * 2 + (i & 1)] = registers_d[lane, i]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_gives_each_lane_two_elements_of_a_row(probes: ctypes.CDLL, transposed: bool) -> None:
    given, got = np.arange(256, dtype=np.uint16), np.zeros((32, 8), np.uint16)
    assert probes.probe_matrices(transposed, pointer(given), pointer(got)) == 0
    matrices = given.reshape(4, 8, 8)
    for lane in range(32):
        for i in range(4):
            matrix = matrices[i].T if transposed else matrices[i]
            assert got[lane, 2 * i : 2 * i + 2].tolist() == matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2].tolist()


def test_conversions_round_as_numpy_does(probes: ctypes.CDLL) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    floats = np.zeros(1 << 16, np.float32)
    probes.probe_from_half(pointer(every), pointer(floats), len(every))
    want = every.view(np.float16).astype(np.float32)
    assert np.array_equal(floats[~np.isnan(want)], want[~np.isnan(want)]) and np.isnan(floats[np.isnan(want)]).all()

    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 200_000, np.uint32)
    small = random.standard_normal(200_000).astype(np.float32) * 10.0 ** random.uniform(-9, 5, 200_000).astype(
        np.float32
    )
    # Ties, both ways: half of a step above every number of 11 bits.
    ties = (np.arange(2048, 4096) + 0.5).astype(np.float32) * 2.0**-14
    edges = np.asarray([0.0, -0.0, 65504.0, 65519.9, 65520.0, 1e-8], np.float32)
    any_bits = bits.view(np.float32)
    values = np.concatenate([any_bits[~np.isnan(any_bits)], small, ties, -ties, edges])
    halves = np.zeros(len(values), np.uint16)
    probes.probe_to_half(pointer(values), pointer(halves), len(values))
    with np.errstate(over="ignore"):
        assert np.array_equal(halves, values.astype(np.float16).view(np.uint16))
    probes.probe_to_bfloat(pointer(values), pointer(halves), len(values))
    assert np.array_equal(halves, values.astype(ml_dtypes.bfloat16).view(np.uint16))
