"""What ptxas says of the kernels for each target: nothing spilled, registers within what was planned for."""

from __future__ import annotations

import pytest

from scripts.kernel_resources import BUDGET, TARGETS, Resources, compile_all, parse

PRINTED = """
ptxas info    : Compiling entry function '_ZN8trtbuild6decodeI6__halfLi128EEEvNS_7ProblemE' for 'sm_90'
ptxas info    : Function properties for _ZN8trtbuild6decodeI6__halfLi128EEEvNS_7ProblemE
    56 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 56 bytes cumulative stack size
ptxas info    : Compile time = 1.000 ms
ptxas info    : Compiling entry function '_ZN8trtbuild14attention_fp32ILi64EEEvNS_7ProblemE' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers
"""


def test_what_ptxas_prints_is_read() -> None:
    """168 registers take 3 blocks of 4 warps: 65536 / (168 * 32 * 4) = 3.05; of 64 warps 12 are 19%."""
    decode, fp32 = parse(PRINTED)
    assert decode == Resources("decode", "fp16", 128, "sm_90", registers=168, stack=56, spilled=20)
    assert (decode.blocks, decode.occupancy) == (3, 12 / 64)
    assert (fp32.kernel, fp32.number, fp32.spilled) == ("attention_fp32", 64, 0)


@pytest.mark.slow
def test_no_kernel_spills_for_any_target() -> None:
    found = compile_all(TARGETS)
    # Two types of 5 head sizes of three kernels, 5 of FP32's, 3 types of 2 vectors of the first step's.
    assert len(found) == len(TARGETS) * (2 * 5 * 3 + 5 + 3 * 2)
    assert {(each.kernel, each.number, each.target) for each in found if each.spilled or each.stack} == set()
    over = {(each.kernel, each.number, each.target) for each in found if each.registers > BUDGET[each.kernel]}
    assert not over
    # What hides the memory's latency when decoding: two blocks at least, three of the usual heads on Ampere to Hopper.
    decoding = [each for each in found if each.kernel == "decode"]
    assert min(each.blocks for each in decoding) >= 2
    usual = [each for each in decoding if each.number <= 128 and each.target in ("sm_80", "sm_86", "sm_89", "sm_90")]
    assert min(each.blocks for each in usual) >= 3
