"""Plots as SVG for a page: matplotlib's, drawn without a display, the same bytes for the same data."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.calibration.layer_fit import MatrixReport, by_role
from trtbuild.calibration.ranges import FP16_LARGEST

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which the colour-blind tell apart."""
PLAIN = "#999999"
WIDTH = 9.0
"""Inches; the page scales it."""


def error_by_layer(matrices: Sequence[MatrixReport]) -> str:
    """SQNR of each kind of projection over the layers, one panel a kind: rounding to nearest, and what was chosen."""
    roles = by_role(matrices)
    columns = min(4, len(roles))
    rows = -(-len(roles) // columns)
    with _figure(WIDTH, 0.4 + 1.7 * rows) as figure:
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for panel, (role, own) in zip(panels, roles.items(), strict=False):
            layers = [report.layer or 0 for report in own]
            mark = "o" if len(own) == 1 else None
            panel.plot(layers, [report.sqnr_rtn for report in own], marker=mark, color=PLAIN, ms=3)
            panel.plot(layers, [report.sqnr for report in own], marker=mark, color=COLOURS[0], ms=3)
            panel.set_title(role, fontsize=9)
        for panel in panels[len(roles) :]:
            panel.set_visible(False)
        figure.supxlabel("layer", fontsize=9)
        figure.supylabel("SQNR, dB", fontsize=9)
        lines = [_line(PLAIN), _line(COLOURS[0])]
        figure.legend(lines, ["rounded to nearest", matrices[0].method], loc="outside upper right", ncols=2, fontsize=8)
        return _svg(figure)


def activation_ranges(matrices: Sequence[MatrixReport]) -> str:
    """The largest absolute input of each kind of projection over the layers, and where FP16 ends.

    Projections that read the same values share a line.
    """
    lines: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for role, own in by_role(matrices).items():
        lines.setdefault(tuple((report.layer or 0, report.largest_input) for report in own), []).append(role)
    with _figure(WIDTH, 3.2) as figure:
        axes = figure.subplots()
        for index, (points, roles) in enumerate(lines.items()):
            style = "-" if index < len(COLOURS) else "--"
            layers, values = zip(*points, strict=True)
            colour = COLOURS[index % len(COLOURS)]
            mark = "o" if len(points) == 1 else None
            axes.plot(layers, values, marker=mark, ls=style, color=colour, label=", ".join(roles), ms=3)
        axes.axhline(FP16_LARGEST, color="#B00020", lw=1, ls=":")
        axes.annotate("the largest FP16", (0, FP16_LARGEST), (2, -9), textcoords="offset points", fontsize=8)
        axes.set_yscale("log")
        axes.set_xlabel("layer", fontsize=9)
        axes.set_ylabel("largest |input|", fontsize=9)
        figure.legend(loc="outside right upper", fontsize=8)
        return _svg(figure)


def divergence_by_position(kl: Sequence[float]) -> str:
    """Mean KL divergence at each position of a window, and its mean over the positions around."""
    values = np.asarray(kl)
    around = max(1, len(values) // 32)
    with _figure(WIDTH, 2.8) as figure:
        axes = figure.subplots()
        axes.plot(values, color=PLAIN, lw=0.5, label="mean of the windows")
        axes.plot(_smoothed(values, around), color=COLOURS[0], label=f"and of {2 * around + 1} positions")
        axes.set_ylim(bottom=0, top=max(1e-9, float(np.quantile(values, 0.98)) * 1.5))
        axes.set_xlabel("position in the window", fontsize=9)
        axes.set_ylabel("KL divergence, nats", fontsize=9)
        figure.legend(loc="outside upper right", ncols=2, fontsize=8)
        return _svg(figure)


def _smoothed(values: NDArray[np.float64], around: int) -> NDArray[np.float64]:
    """The mean of each value and `around` on either side, of those that there are."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first, last = np.maximum(places - around, 0), np.minimum(places + around + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def _line(colour: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour)


@contextmanager
def _figure(width: float, height: float) -> Iterator[Figure]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text stays text, in the page's font; the salt makes identifiers the same each time.
    settings: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "trtbuild", "font.family": "sans-serif"}
    settings |= {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}
    settings |= {"xtick.labelsize": 8, "ytick.labelsize": 8, "legend.frameon": False, "lines.linewidth": 1.3}
    with mpl.rc_context(settings):
        yield Figure((width, height), layout="constrained")


def _svg(figure: Figure) -> str:
    """The drawing as an element: without the XML prologue, and as wide as the page lets it be."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()[out.getvalue().index("<svg") :]
