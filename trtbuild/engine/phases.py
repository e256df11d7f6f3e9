"""The builder's nested phases as one number that only grows."""

from __future__ import annotations

from dataclasses import dataclass, field

_SPINE = ("Building engine", "Building engine from subgraph", "Computing profile costs")
"""Where the time goes, outermost first (TensorRT-RTX 1.7, seen: 99% of SmolLM2's build is in the innermost)."""
_BEFORE, _AFTER = 0.05, 0.95
"""The share of the bar at which the outermost phase reaches the second one, and leaves it."""


@dataclass(slots=True)
class _Phase:
    parent: str | None
    steps: int
    done: int = 0

    @property
    def fraction(self) -> float:
        return min(self.done / self.steps, 1.0) if self.steps > 0 else 0.0


@dataclass(slots=True)
class BuildPhases:
    """Follows IProgressMonitor's calls; `fraction` is 0 to 1 and never falls, `note` names the innermost phase.

    A builder whose phases have other names moves the bar by its outermost phase alone.
    """

    fraction: float = 0.0
    _open: dict[str, _Phase] = field(default_factory=dict)

    def start(self, name: str, parent: str | None, steps: int) -> None:
        self._open[name] = _Phase(parent, steps)
        self._advance()

    def step(self, name: str, step: int) -> None:
        if name in self._open:
            self._open[name].done = step + 1
            self._advance()

    def finish(self, name: str) -> None:
        phase = self._open.get(name)
        if phase is not None:
            phase.done = phase.steps
            self._advance()
            del self._open[name]

    @property
    def note(self) -> str:
        return next(reversed(self._open), "")

    def _advance(self) -> None:
        self.fraction = max(self.fraction, self._measure())

    def _measure(self) -> float:
        root = next((phase for phase in self._open.values() if phase.parent is None), None)
        if root is None:
            return self.fraction
        subgraphs = self._open.get(_SPINE[1])
        if subgraphs is None:
            quick_part = _SPINE[0] in self._open and root.fraction < 1.0
            return root.fraction * _BEFORE if quick_part else root.fraction
        costs = self._open.get(_SPINE[2])
        inner = costs.fraction / subgraphs.steps if costs is not None else 0.0
        return _BEFORE + (_AFTER - _BEFORE) * min(subgraphs.fraction + inner, 1.0)
