"""Registers, shared memory and occupancy of the attention kernels for each target, as ptxas reports them.

    python scripts/kernel_resources.py [--target sm_80 --target sm_90] [--markdown]

Compiles plugins/src/kernels for the targets (a minute and a half for all six on two cores), runs nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from trtbuild.plugin.toolchain import find_nvcc  # noqa: E402

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

LIMITS = {
    "sm_80": (64, 32, 164), "sm_86": (48, 16, 100), "sm_89": (48, 24, 100),
    "sm_90": (64, 32, 228), "sm_100": (64, 32, 228), "sm_120": (48, 24, 100),
}  # fmt: skip
"""Of a multiprocessor: warps, blocks and kB of shared memory (CUDA C++ Programming Guide, compute capabilities)."""

REGISTERS, REGISTER_UNIT, BLOCK_RESERVE = 65536, 256, 1024
"""Of a multiprocessor; what a warp's are rounded up to; bytes of shared memory that a block takes for the system."""

BUDGET = {"rope_and_write": 64, "attention_fp32": 255, "decode": 255, "merge_splits": 128, "prefill": 255}
"""The most registers that each kernel may take."""

_ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\S+)' for '(?P<target>\w+)'.*?(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)
_NAME = re.compile(r"_ZN8trtbuild\d+(?P<kernel>[a-z]\w*?)I(?P<type>f|6__half|13__nv_bfloat16)?(?:Li(?P<number>\d+)E)?E")


@dataclass(frozen=True)
class Resources:
    """One kernel for one target; `number` is its head size, or the elements of a vector of rope_and_write."""

    kernel: str
    type: str
    number: int
    target: str
    registers: int
    stack: int
    spilled: int
    """Bytes of spill stores and loads."""

    @property
    def warps(self) -> int:
        """Of a block."""
        if self.kernel == "prefill":
            return {64: 6, 256: 4}.get(self.number, 8)
        return -(-self.number // 32) if self.kernel == "merge_splits" else 4

    @property
    def shared(self) -> int:
        """Bytes that a block asks for when it is launched (plugins/include/trtbuild/decode.cuh, prefill.cuh, …)."""
        wide = self.number
        if self.kernel == "decode":
            return 4 * 4 * 8 * (wide + 2) + (16 * wide if wide > 128 else 0)
        if self.kernel == "prefill":
            rows = 4 * 64 if wide <= 128 else 4 * 32 + 64
            return 2 * rows * (wide + 8)
        return 4 * 4 * wide if self.kernel == "attention_fp32" else 0

    @property
    def blocks(self) -> int:
        """How many fit on a multiprocessor at a time."""
        warps, blocks, kilobytes = LIMITS[self.target]
        own_warps = self.warps
        own_registers = -(-self.registers * 32 // REGISTER_UNIT) * REGISTER_UNIT * own_warps
        by_shared = kilobytes * 1024 // (self.shared + BLOCK_RESERVE)
        return min(blocks, warps // own_warps, REGISTERS // own_registers, by_shared)

    @property
    def occupancy(self) -> float:
        """Of the warps that a multiprocessor holds."""
        return self.blocks * self.warps / LIMITS[self.target][0]


def parse(text: str) -> list[Resources]:
    """What `nvcc -Xptxas -v` printed."""
    types = {"f": "fp32", "6__half": "fp16", "13__nv_bfloat16": "bf16", None: "fp32"}
    found = []
    for entry in _ENTRY.finditer(text):
        name = _NAME.match(entry["name"])
        if name is None:
            raise ValueError(f"{entry['name']} is no kernel of ours")
        spilled = int(entry["stores"]) + int(entry["loads"])
        found.append(
            Resources(
                name["kernel"], types[name["type"]], int(name["number"]), entry["target"],
                int(entry["registers"]), int(entry["stack"]), spilled,
            )
        )  # fmt: skip
    return found


def compile_all(targets: Sequence[str]) -> list[Resources]:
    """Compile every kernel for the targets. Raises CalledProcessError with nvcc's words on its error output."""
    nvcc = find_nvcc()
    sources = sorted((ROOT / "plugins" / "src" / "kernels").glob("*.cu"))

    def one(job: tuple[str, Path]) -> list[Resources]:
        target, source = job
        with tempfile.TemporaryDirectory() as place:
            command = [
                *nvcc.command, "-std=c++17", "-O3", f"-arch={target}", "-cubin", "-Xptxas", "-v",
                f"-I{ROOT / 'plugins' / 'include'}", str(source), "-o", f"{place}/kernels.cubin",
            ]  # fmt: skip
            return parse(subprocess.run(command, check=True, capture_output=True, text=True).stderr)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(target, source) for target in targets for source in sources]
        return [each for found in pool.map(one, jobs) for each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--target", action="append", choices=TARGETS, help="may be given several times; all if not given"
    )
    parser.add_argument("--markdown", action="store_true", help="one line a kernel, for docs")
    arguments = parser.parse_args()
    targets = tuple(arguments.target or TARGETS)
    found = [each for each in compile_all(targets) if each.type != "bf16"]
    by_kernel: dict[tuple[str, str, int], dict[str, Resources]] = {}
    for each in found:
        by_kernel.setdefault((each.kernel, each.type, each.number), {})[each.target] = each
    separator = " | " if arguments.markdown else "  "
    lines = [["kernel", "shared", *targets]]
    if arguments.markdown:
        lines.append(["---"] * (len(targets) + 2))
    for (kernel, dtype, number), own in sorted(by_kernel.items()):
        cells = [f"{own[t].registers} regs, {own[t].blocks} blocks, {own[t].occupancy:.0%}" for t in targets]
        first = next(iter(own.values()))
        lines.append([f"{kernel} {dtype} {number}", f"{first.shared / 1024:.1f} kB", *cells])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        text = separator.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(f"| {text} |" if arguments.markdown else text.rstrip())
    spilled = [each for each in found if each.spilled]
    print(f"\n{len(spilled)} of {len(found)} kernels spill registers.", file=sys.stderr)


if __name__ == "__main__":
    main()
