"""ALiBi's slopes (Press et al. 2022): what a head's scores lose per position of distance."""

from __future__ import annotations


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The paper's: 2^(-8/n), 2^(-16/n), … for n heads, a power of two.

    For other counts, as in the authors' code: those of the power of two below, then every other one of the power above.
    """
    below = 1 << (heads.bit_length() - 1)
    if below == heads:
        return tuple(2.0 ** (-8 * (head + 1) / heads) for head in range(heads))
    return (*alibi_slopes(below), *alibi_slopes(2 * below)[::2][: heads - below])
