"""Drawing: matplotlib's figures as SVG for a page, without a display, the same bytes for the same data."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which the colour-blind tell apart."""
PLAIN = "#999999"
LIMIT = "#D93A4C"
"""Seen on a light page and on a dark one."""
WIDTH = 9.0
"""Inches; the page scales it."""


def line(colour: str, **style: Any) -> Any:
    """A line for a legend; `style` is matplotlib's."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, **style)


def plain_log_scale(axis: Any, scale: Any) -> None:
    """A logarithmic `axis` with numbers as people write them; `scale` is the axes' set_xscale or set_yscale."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    scale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches, to be drawn on and given to `svg` inside the block."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text stays text, in the page's font; the salt makes identifiers the same each time.
    settings: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "trtbuild", "font.family": "sans-serif"}
    settings |= {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}
    settings |= {"xtick.labelsize": 8, "ytick.labelsize": 8, "legend.frameon": False, "lines.linewidth": 1.3}
    # The page's background shows through.
    settings |= {"figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none"}
    with mpl.rc_context(settings):
        yield Figure((width, height), layout="constrained")


def svg(drawn: Figure) -> str:
    """The drawing as an element: without the XML prologue, as wide as the page lets it be, its black in the page's
    colour of text."""
    out = io.StringIO()
    drawn.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return out.getvalue()[out.getvalue().index("<svg") :].replace("#000000", "currentColor")
