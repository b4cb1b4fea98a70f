"""Paired comparisons: one sample under several conditions, counted over complete samples only.

Pure functions of plain numbers; each names the source of its rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from colab_utils.errors import ParameterError

REASONS = ("rejected", "missing", "no_verdict", "reference_error")
"""Why a sample leaves every comparison; where several hold, the first one is counted."""

BOOTSTRAP_SEED = 20240521
BOOTSTRAP_RESAMPLES = 10_000


@dataclass(frozen=True)
class Proportion:
    """A share with its confidence limits, all from 0 to 1; None where n is 0."""

    n: int
    passed: int
    share: float | None
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True)
class PairedDifference:
    """Accuracy under a condition less accuracy under its base, over n samples that have both.

    `only_condition` and `only_base` are the discordant counts. `difference` and its limits
    are shares from -1 to 1; they and `p_value` (exact McNemar, two-sided) are None where n is 0.
    """

    n: int
    both: int
    only_condition: int
    only_base: int
    neither: int
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    p_value: float | None

    @property
    def discordant_share(self) -> float | None:
        """Share of samples whose two verdicts differ; None where n is 0."""
        return (self.only_condition + self.only_base) / self.n if self.n else None


@dataclass(frozen=True)
class Interaction:
    """both - first - second + base, in shares, with percentile bootstrap limits; None at n 0."""

    n: int
    estimate: float | None
    ci_low: float | None
    ci_high: float | None
    resamples: int
    seed: int


@dataclass(frozen=True)
class CompleteSamples:
    """`passed[sample_id][condition]` of the samples that count, and why the others do not."""

    passed: dict[str, dict[str, bool]]
    left_out: dict[str, str]


def complete_samples(
    cells: Mapping[str, Mapping[str, bool | str]], conditions: Sequence[str]
) -> CompleteSamples:
    """Split samples into those judged under every condition and those that leave all contrasts.

    `cells[sample_id][condition]` is the verdict, or one of `REASONS`; an absent condition
    counts as "missing". Raises `ParameterError` for a word that is not a reason.
    """
    passed: dict[str, dict[str, bool]] = {}
    left_out: dict[str, str] = {}
    for sample_id, row in cells.items():
        judged = {condition: row.get(condition, "missing") for condition in conditions}
        reasons = {cell for cell in judged.values() if isinstance(cell, str)}
        if unknown := reasons.difference(REASONS):
            raise ParameterError(f"holds {min(unknown)!r}", where=f"cells of {sample_id}")
        if reasons:
            left_out[sample_id] = min(reasons, key=REASONS.index)
        else:
            passed[sample_id] = {name: bool(cell) for name, cell in judged.items()}
    return CompleteSamples(passed, left_out)


def wilson(passed: int, n: int, *, alpha: float = 0.05) -> Proportion:
    """Share of `passed` in `n` with Wilson's score interval (Wilson 1927, JASA 22:209)."""
    _check_alpha(alpha)
    if not 0 <= passed <= n:
        raise ParameterError(f"{passed} of {n} is not a count", where="passed")
    if n == 0:
        return Proportion(0, 0, None, None, None)
    low, high = proportion_confint(passed, n, alpha=alpha, method="wilson")
    return Proportion(n, passed, passed / n, max(0.0, float(low)), min(1.0, float(high)))


def paired_difference(
    pairs: Iterable[tuple[bool, bool]], *, alpha: float = 0.05
) -> PairedDifference:
    """Compare two conditions over `pairs` of (passed under condition, passed under base).

    Limits: Newcombe 1998 (Stat Med 17:2635), method 10: Wilson limits of both margins,
    joined by square and add with a continuity-corrected phi. They respect the pairing and stay
    within -1 and 1; being another method than the test, near alpha the two can disagree.
    p: McNemar's exact test, the two-sided binomial on the discordant pairs.
    """
    _check_alpha(alpha)
    both = only_condition = only_base = neither = 0
    for condition, base in pairs:
        both += condition and base
        only_condition += condition and not base
        only_base += base and not condition
        neither += not (condition or base)
    n = both + only_condition + only_base + neither
    counts = (n, both, only_condition, only_base, neither)
    if n == 0:
        return PairedDifference(*counts, None, None, None, None)
    low, high = _newcombe_method_10(both, only_condition, only_base, neither, alpha)
    test = mcnemar([[both, only_condition], [only_base, neither]], exact=True)
    difference = (only_condition - only_base) / n
    return PairedDifference(*counts, difference, low, high, min(1.0, float(test.pvalue)))


def _newcombe_method_10(a: int, b: int, c: int, d: int, alpha: float) -> tuple[float, float]:
    n = a + b + c + d
    first, second = (a + b) / n, (a + c) / n
    low1, high1 = proportion_confint(a + b, n, alpha=alpha, method="wilson")
    low2, high2 = proportion_confint(a + c, n, alpha=alpha, method="wilson")
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    agreement: float = a * d - b * c
    if agreement > 0:
        agreement = max(agreement - n / 2, 0)
    phi = agreement / math.sqrt(margins) if margins else 0.0

    def reach(own: float, other: float) -> float:
        return math.sqrt(max(0.0, own**2 - 2 * phi * own * other + other**2))

    difference = first - second
    low = difference - reach(first - float(low1), float(high2) - second)
    high = difference + reach(float(high1) - first, second - float(low2))
    return max(-1.0, low), min(1.0, high)


def holm(p_values: Sequence[float | None], *, alpha: float = 0.05) -> list[float | None]:
    """Adjusted p values of one family (Holm 1979, Scand J Stat 6:65), in the order given.

    A None (nothing to test) stays None and does not count in the family.
    """
    tested = [p for p in p_values if p is not None]
    if not tested:
        return [None] * len(p_values)
    adjusted = iter(multipletests(tested, alpha=alpha, method="holm")[1])
    return [None if p is None else float(next(adjusted)) for p in p_values]


def interaction(
    rows: Mapping[str, Sequence[tuple[bool, bool, bool, bool]]],
    *,
    alpha: float = 0.05,
    seed: int = BOOTSTRAP_SEED,
    resamples: int = BOOTSTRAP_RESAMPLES,
) -> Interaction:
    """Interaction of the 2x2 design: passed(both) - passed(first) - passed(second) + passed(base).

    `rows[stratum]` holds one (both, first, second, base) a sample.
    Percentile bootstrap (Efron & Tibshirani 1993, ch. 13): samples are drawn with
    replacement within each stratum, all conditions of a sample together, from a fixed seed.
    """
    _check_alpha(alpha)
    values = range(-2, 3)
    counts = []
    for stratum in rows.values():
        scores = [int(m3) - int(m1) - int(m2) + int(base) for m3, m1, m2, base in stratum]
        if scores:
            counts.append([scores.count(value) for value in values])
    n = sum(map(sum, counts))
    if n == 0:
        return Interaction(0, None, None, None, resamples, seed)
    estimate = sum(np.dot(row, values) for row in counts) / n
    generator = np.random.default_rng(seed)
    totals = np.zeros(resamples)
    for row in counts:
        # drawing samples is drawing their five possible scores: one multinomial a stratum
        drawn = generator.multinomial(sum(row), np.array(row) / sum(row), size=resamples)
        totals += drawn @ np.array(values)
    low, high = np.quantile(totals / n, [alpha / 2, 1 - alpha / 2])
    return Interaction(n, float(estimate), float(low), float(high), resamples, seed)


def detectable_difference(
    n: int, discordant_share: float = 0.15, power: float = 0.8, alpha: float = 0.05
) -> float | None:
    """Smallest true difference, in points of accuracy, that `n` pairs show with this power.

    Exact, unconditional power of the exact McNemar test (Duffy 1984, Biometrics 40:1005):
    the discordant pairs are binomial in n, the wins among them binomial in the discordant
    pairs. A difference cannot exceed the discordant share; where even that is
    found too seldom the answer is None.
    """
    _check_alpha(alpha)
    if n < 1:
        raise ParameterError(f"{n} is not a number of pairs", where="n")
    for name, value in (("discordant_share", discordant_share), ("power", power)):
        if not 0 < value < 1:
            raise ParameterError(f"{value} is not between 0 and 1", where=name)
    discordant = np.arange(n + 1)
    weight = stats.binom.pmf(discordant, n, discordant_share)
    # largest count of losses at which the two-sided test still rejects; -1 where none does
    quantile = stats.binom.ppf(alpha / 2, discordant, 0.5)
    critical = quantile - (2 * stats.binom.cdf(quantile, discordant, 0.5) > alpha)

    def shortfall(difference: float) -> float:
        win = (1 + difference / discordant_share) / 2
        tails = stats.binom.cdf(critical, discordant, win) + stats.binom.sf(
            discordant - critical - 1, discordant, win
        )
        return float(power - weight @ tails)

    if shortfall(discordant_share) > 0:
        return None
    return 100 * float(optimize.brentq(shortfall, 0.0, discordant_share, xtol=1e-6))


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ParameterError(f"{alpha} is not between 0 and 1", where="alpha")
