"""ALiBi's slopes: the paper's, BLOOM's for head counts that are no power of two, and MPT's in its own order."""

from __future__ import annotations

import pytest

from trtbuild.architectures.alibi import alibi_slopes
from trtbuild.architectures.families.mpt import mpt_slopes


def powers(*exponents: float) -> list[float]:
    return [2.0**-exponent for exponent in exponents]


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        # Press et al. 2022, section 3: 1/2 … 1/256 for 8 heads, and the roots between them for 16.
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5, 8]),
        # The authors' get_slopes: those of 4, then every other one of 8; of 8, then of 16.
        (6, [2, 4, 6, 8, 1, 3]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (1, [8]),
    ],
)
def test_the_papers(heads: int, exponents: list[float]) -> None:
    assert alibi_slopes(heads) == pytest.approx(powers(*exponents), rel=1e-12)


@pytest.mark.parametrize(
    ("heads", "below", "first_extra"), [(40, 32, 2**-0.125), (71, 64, 2**-0.0625), (112, 64, 2**-0.0625)]
)
def test_published_head_counts(heads: int, below: int, first_extra: float) -> None:
    """Baichuan 13B, a Falcon 7B's count, BLOOM 176B."""
    slopes = alibi_slopes(heads)
    assert len(slopes) == heads
    assert slopes[below - 1] == pytest.approx(2.0**-8)
    assert slopes[below] == pytest.approx(first_extra)
    assert slopes[below + 1] == pytest.approx(first_extra**3)


def test_mpt_takes_every_other_one_of_the_power_above_first() -> None:
    assert mpt_slopes(8, 8) == pytest.approx(powers(1, 2, 3, 4, 5, 6, 7, 8))
    assert mpt_slopes(6, 8) == pytest.approx(powers(2, 4, 6, 8, 1, 3))
    assert mpt_slopes(12, 8) == pytest.approx(powers(1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5))
    # 112 heads: the order differs from BLOOM's, whose first 64 are spaced as for 64 heads.
    assert mpt_slopes(112, 8)[:2] == pytest.approx(powers(0.125, 0.25))


def test_storywriter_has_half_the_range_that_the_default_has() -> None:
    """alibi_bias_max 16, which transformers' MPT reads nowhere and the published code does."""
    assert mpt_slopes(4, 16) == pytest.approx(powers(4, 8, 12, 16))
