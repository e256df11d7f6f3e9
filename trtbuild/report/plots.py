"""An evaluation's plots, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trtbuild.calibration.layer_fit import MatrixReport, by_role
from trtbuild.calibration.ranges import FP16_LARGEST
from trtbuild.report.figure import COLOURS, LIMIT, PLAIN, WIDTH, figure, line, svg


def error_by_layer(matrices: Sequence[MatrixReport]) -> str:
    """SQNR of each kind of projection over the layers, one panel a kind: rounding to nearest, and what was chosen."""
    roles = by_role(matrices)
    columns = min(4, len(roles))
    rows = -(-len(roles) // columns)
    with figure(WIDTH, 0.4 + 1.7 * rows) as drawn:
        panels = drawn.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for panel, (role, own) in zip(panels, roles.items(), strict=False):
            layers = [report.layer or 0 for report in own]
            mark = "o" if len(own) == 1 else None
            panel.plot(layers, [report.sqnr_rtn for report in own], marker=mark, color=PLAIN, ms=3)
            panel.plot(layers, [report.sqnr for report in own], marker=mark, color=COLOURS[0], ms=3)
            panel.set_title(role, fontsize=9)
        for panel in panels[len(roles) :]:
            panel.set_visible(False)
        drawn.supxlabel("layer", fontsize=9)
        drawn.supylabel("SQNR, dB", fontsize=9)
        lines = [line(PLAIN), line(COLOURS[0])]
        drawn.legend(lines, ["rounded to nearest", matrices[0].method], loc="outside upper right", ncols=2, fontsize=8)
        return svg(drawn)


def activation_ranges(matrices: Sequence[MatrixReport]) -> str:
    """The largest absolute input of each kind of projection over the layers, and where FP16 ends.

    Projections that read the same values share a line.
    """
    lines: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for role, own in by_role(matrices).items():
        lines.setdefault(tuple((report.layer or 0, report.largest_input) for report in own), []).append(role)
    with figure(WIDTH, 3.2) as drawn:
        axes = drawn.subplots()
        for index, (points, roles) in enumerate(lines.items()):
            style = "-" if index < len(COLOURS) else "--"
            layers, values = zip(*points, strict=True)
            colour = COLOURS[index % len(COLOURS)]
            mark = "o" if len(points) == 1 else None
            axes.plot(layers, values, marker=mark, ls=style, color=colour, label=", ".join(roles), ms=3)
        axes.axhline(FP16_LARGEST, color=LIMIT, lw=1, ls=":")
        axes.annotate("the largest FP16", (0, FP16_LARGEST), (2, -9), textcoords="offset points", fontsize=8)
        axes.set_yscale("log")
        axes.set_xlabel("layer", fontsize=9)
        axes.set_ylabel("largest |input|", fontsize=9)
        drawn.legend(loc="outside right upper", fontsize=8)
        return svg(drawn)


def divergence_by_position(kl: Sequence[float]) -> str:
    """Mean KL divergence at each position of a window, and its mean over the positions around."""
    values = np.asarray(kl)
    around = max(1, len(values) // 32)
    with figure(WIDTH, 2.8) as drawn:
        axes = drawn.subplots()
        axes.plot(values, color=PLAIN, lw=0.5, label="mean of the windows")
        axes.plot(_smoothed(values, around), color=COLOURS[0], label=f"and of {2 * around + 1} positions")
        axes.set_ylim(bottom=0, top=max(1e-9, float(np.quantile(values, 0.98)) * 1.5))
        axes.set_xlabel("position in the window", fontsize=9)
        axes.set_ylabel("KL divergence, nats", fontsize=9)
        drawn.legend(loc="outside upper right", ncols=2, fontsize=8)
        return svg(drawn)


def _smoothed(values: NDArray[np.float64], around: int) -> NDArray[np.float64]:
    """The mean of each value and `around` on either side, of those that there are."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first, last = np.maximum(places - around, 0), np.minimum(places + around + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)
