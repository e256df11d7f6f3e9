"""What the builder's process is told: an EngineRequest as plain JSON, with everything that needed ONNX worked out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtbuild.engine.preflight import GraphFacts, PluginNode
from trtbuild.engine.request import BuildOptions, Flavour, HardwareCompatibility

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProfileShapes:
    """One optimisation profile: by input, its shape at min, opt and max."""

    name: str
    inputs: dict[str, tuple[Shape, Shape, Shape]]


@dataclass(frozen=True, slots=True)
class Job:
    """One build."""

    onnx_file: Path
    destination: Path
    """An existing file that the plan's bytes are written to."""
    flavour: Flavour
    targets: tuple[str, ...]
    options: BuildOptions
    profiles: tuple[ProfileShapes, ...]
    facts: GraphFacts

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=_plain)

    @staticmethod
    def from_json(text: str) -> Job:
        data: dict[str, Any] = json.loads(text)
        options, facts = data["options"], data["facts"]
        options["hardware_compatibility"] = HardwareCompatibility(options["hardware_compatibility"])
        options["timing_cache"] = Path(options["timing_cache"]) if options["timing_cache"] else None
        options["plugin_libraries"] = tuple(map(Path, options["plugin_libraries"]))
        facts["plugins"] = tuple(PluginNode(**plugin) for plugin in facts["plugins"])
        return Job(
            onnx_file=Path(data["onnx_file"]),
            destination=Path(data["destination"]),
            flavour=Flavour(data["flavour"]),
            targets=tuple(data["targets"]),
            options=BuildOptions(**options),
            profiles=tuple(ProfileShapes(**profile) for profile in data["profiles"]),
            facts=GraphFacts(**{**facts, "inputs": tuple(facts["inputs"]), "int4_nodes": tuple(facts["int4_nodes"])}),
        )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Flavour | HardwareCompatibility) else str(value)
