"""What a plan file tells of itself before any TensorRT loads it. build.json knows more; this needs the plan alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtbuild.engine.request import Flavour
from trtbuild.errors import InputError

_RTX_MAGIC = b"vtrt"
_HEADER_BYTES = 64  # Runtime.engine_header_size of TensorRT-RTX 1.7.1
_TARGET_BITS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_120", "sm_121")
_OTHER_FORMATS = (
    (b"GGUF", "a GGUF model"),
    (b"PK\x03\x04", "a zip archive (or a PyTorch checkpoint)"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (b"\x7fELF", "a program or shared library"),
)
_TEXT = frozenset(b"\t\n\r" + bytes(range(32, 127)))


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """What the header says. `flavour` None: no TensorRT-RTX plan; it may be TensorRT's, whose header is not known."""

    bytes: int
    flavour: Flavour | None
    version: str | None
    """"1.7.1.116"."""
    targets: tuple[str, ...]


def inspect_plan(file: Path) -> PlanInfo:
    """Read a plan's header. Raises InputError if the file is absent, cut short, or plainly something else.

    TensorRT-RTX's header as seen in the plans of 1.7.1.116, for every target alone and several together: "vtrt" at 0,
    the file's size as u64 at 16, the version's four parts as bytes at 24, "vtrt" at 28, the targets as bits of a u32
    at 32.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            header = stream.read(_HEADER_BYTES)
    except OSError as error:
        raise InputError(f"The plan {file} cannot be read: {error.strerror}.") from error
    for magic, what in _OTHER_FORMATS:
        if header.startswith(magic):
            raise InputError(f"{file} is {what}; a TensorRT plan is wanted.")
    if _is_onnx(header):
        raise InputError(f"{file} is an ONNX model; build a plan from it first.")
    if len(header) < _HEADER_BYTES or all(byte in _TEXT for byte in header):
        raise InputError(f"{file} is not a TensorRT plan ({size} bytes). Build it again.")
    if not header.startswith(_RTX_MAGIC):
        return PlanInfo(size, None, None, ())
    if header[28:32] != _RTX_MAGIC:
        return PlanInfo(size, Flavour.RTX, None, ())
    stated = int.from_bytes(header[16:24], "little")
    if stated != size:
        raise InputError(f"{file} has {size} bytes and its header says {stated}: it was cut short. Copy it again.")
    bits = int.from_bytes(header[32:36], "little")
    targets = tuple(target for index, target in enumerate(_TARGET_BITS) if bits >> index & 1)
    return PlanInfo(size, Flavour.RTX, ".".join(map(str, header[24:28])), targets)


def _is_onnx(header: bytes) -> bool:
    """ModelProto's first field, ir_version (a small varint), and a text or message field after it."""
    return len(header) > 2 and header[0] == 0x08 and header[1] < 32 and header[2] & 7 == 2
