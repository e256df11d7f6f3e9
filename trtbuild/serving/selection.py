"""The most probable of a vocabulary's tokens, without sorting all of it.

A vocabulary has 50,000 to 250,000 tokens, of which a request needs a few dozen; sorting it takes ten times as long as
everything else that choosing a token needs. Where values are equal, the lower token ids count as the larger, so that
the outcome does not depend on the order in which a partial sort leaves them.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

BIN_BITS = 19
"""The last bits of a float32, in which the floats of one bin differ: a bin is a sixteenth of an octave."""
LIKELY, FEW = np.float32(2.0**-12), 4096
"""Where no more than `FEW` weights are above `LIKELY` of the largest, a nucleus is looked for among them first."""
PIECE = 8192
"""Weights that are sorted into bins at once."""


def check_finite(highest_logit: float) -> None:
    """Raise FloatingPointError for the maximum of a row of logits that is NaN or infinite."""
    if not math.isfinite(highest_logit):
        raise FloatingPointError(f"the model computed {highest_logit} as a logit (an overflow of its number type)")


def largest(values: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The places, ascending, of the `count` largest `values`; all of them if there are no more."""
    if count >= len(values):
        return np.arange(len(values))
    # At least `count` values reach the count-th largest of the blocks' maxima, so the others can be left out.
    block = max(1, len(values) // (4 * count))
    maxima = np.maximum.reduceat(values, np.arange(0, len(values), block))
    places = np.flatnonzero(values >= np.partition(maxima, -count)[-count])
    candidates = values[places]
    return places[_above_and_first_equal(candidates, np.partition(candidates, -count)[-count], count)]


def nucleus(weights: NDArray[np.float32], top_p: float) -> NDArray[np.intp]:
    """The places, ascending, of the fewest largest `weights` (>= 0) whose sum is `top_p` of the whole or more.

    Never none. Holtzman et al. 2019, The Curious Case of Neural Text Degeneration.
    """
    mask = weights >= weights.max() * LIKELY
    if np.count_nonzero(mask) <= FEW:  # as where a model knows what it wants to say
        likely = np.flatnonzero(mask)
        ordered = np.sort(weights[likely])[::-1]
        reached = np.cumsum(ordered, dtype=np.float64)
        needed = top_p * float(weights.sum(dtype=np.float64))
        if needed <= reached[-1]:
            last = int(np.searchsorted(reached, needed))
            return likely[_above_and_first_equal(weights[likely], ordered[last], last + 1)]
    return _nucleus_by_bins(weights, top_p)


def _nucleus_by_bins(weights: NDArray[np.float32], top_p: float) -> NDArray[np.intp]:
    """The same where thousands of tokens share the mass."""
    masses = _masses(weights)[::-1]
    reached = np.cumsum(masses)
    needed = max(top_p * float(reached[-1]), sys.float_info.min)  # of nothing, an empty bin would be enough
    place = int(np.searchsorted(reached, needed))
    # Only the bin in which the sum reaches the share has to be sorted.
    bits = np.array([len(masses) - 1 - place, len(masses) - place], np.int32) << BIN_BITS
    lower, upper = bits.view(np.float32)
    ordered = np.sort(weights[(weights >= lower) & (weights < upper)])[::-1]
    before = float(reached[place - 1]) if place else 0.0
    inside = np.cumsum(ordered, dtype=np.float64)
    last = min(int(np.searchsorted(before + inside, needed)), len(ordered) - 1)
    return _above_and_first_equal(weights, ordered[last], int(np.count_nonzero(weights >= upper)) + last + 1)


def _masses(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """The sums of the `weights` (>= 0) in each bin of floats, from the smallest to the largest one.

    Floats that are not negative are in the order of their bits; the first 13 of these, which are the bin, are the
    exponent and four bits of the fraction. In pieces, since arrays of a vocabulary's size come and go by page faults,
    which take longer than the sums.
    """
    masses = np.zeros(1 << (31 - BIN_BITS))
    for start in range(0, len(weights), PIECE):
        piece = weights[start : start + PIECE]
        bins = (piece.view(np.int32) >> BIN_BITS).astype(np.intp)
        masses += np.bincount(bins, piece.astype(np.float64), minlength=len(masses))
    return masses


def _above_and_first_equal(values: NDArray[np.float32], last: np.float32, count: int) -> NDArray[np.intp]:
    """The places, ascending, of `count` of `values`: of those above `last`, and of the first that equal it."""
    keep = values > last
    equal = np.flatnonzero(values == last)
    keep[equal[: count - int(np.count_nonzero(keep))]] = True
    return np.flatnonzero(keep)
