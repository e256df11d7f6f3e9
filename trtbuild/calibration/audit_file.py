"""The file that `audit` writes and `--audit` reads: which values FP16 cannot hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtbuild.calibration.ranges import FP16_LARGEST, MARGIN, Range
from trtbuild.checkpoint import Checkpoint
from trtbuild.checkpoint.jsonfile import read_json_object
from trtbuild.errors import InputError
from trtbuild.files import write_json

FORMAT = 1


def write_audit(file: Path, checkpoint: Checkpoint, ranges: Iterable[Range], samples: Mapping[str, Any]) -> None:
    """Write every range, the faulty ones with their fault."""
    ranges = list(ranges)
    write_json(
        file,
        {
            "format": FORMAT,
            "model": checkpoint.source,
            "fingerprint": checkpoint.fingerprint(),
            "samples": dict(samples),
            "largest": FP16_LARGEST,
            "margin": MARGIN,
            "unsafe": {found.name: found.fault for found in ranges if found.fault is not None},
            "ranges": [asdict(found) for found in ranges],
        },
    )


def read_audit(file: Path, checkpoint: Checkpoint) -> frozenset[str]:
    """Names of the values and weights that are kept in FP32.

    Raises InputError for a file that is none of ours, or that is another model's.
    """
    data = read_json_object(file)
    fingerprint, unsafe = data.get("fingerprint"), data.get("unsafe")
    if data.get("format") != FORMAT or not isinstance(unsafe, dict) or not isinstance(fingerprint, str):
        raise InputError(f"{file} is not what this release's `trtbuild audit` writes. Make it again.")
    if fingerprint != checkpoint.fingerprint():
        raise InputError(
            f"{file} is of {data.get('model')} (fingerprint {fingerprint[:12]}), not of {checkpoint.source} "
            f"({checkpoint.fingerprint()[:12]}). Run `trtbuild audit` on the model that you compile."
        )
    return frozenset(unsafe)
