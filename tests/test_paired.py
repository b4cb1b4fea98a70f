"""Statistics against published worked examples and independent enumeration."""

from __future__ import annotations

import math
from itertools import product

import pytest
from scipy import stats

from colab_utils.errors import ParameterError
from colab_utils.paired import (
    complete_samples,
    detectable_difference,
    holm,
    interaction,
    paired_difference,
    wilson,
)


def pairs(both: int, only_condition: int, only_base: int, neither: int) -> list[tuple[bool, bool]]:
    return (
        [(True, True)] * both
        + [(True, False)] * only_condition
        + [(False, True)] * only_base
        + [(False, False)] * neither
    )


# Newcombe 1998, Stat Med 17:857, table I, method 3
@pytest.mark.parametrize(
    ("passed", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_limits_are_the_published_ones(passed: int, n: int, low: float, high: float) -> None:
    found = wilson(passed, n)
    assert found.share == passed / n
    assert found.ci_low == pytest.approx(low, abs=5e-5)
    assert found.ci_high == pytest.approx(high, abs=5e-5)


def test_wilson_stays_within_0_and_1_and_says_nothing_of_nothing() -> None:
    assert wilson(20, 20).ci_high == pytest.approx(1) and wilson(20, 20).ci_high <= 1
    assert wilson(0, 20).ci_low == 0
    assert (wilson(0, 0).share, wilson(0, 0).ci_low, wilson(0, 0).ci_high) == (None, None, None)
    with pytest.raises(ParameterError, match="3 of 2"):
        wilson(3, 2)


# first: Newcombe 1998, Stat Med 17:2635; then Bentur et al. 2009 and Cavo et al. 2012 as worked
# by Fagerland, Lydersen & Laake 2014, Stat Med 33:2850; last: Altman et al. 2000, table 6.2
@pytest.mark.parametrize(
    ("table", "difference", "low", "high"),
    [
        ((36, 12, 2, 0), 0.2, 0.0569, 0.3404),
        ((1, 1, 7, 12), -0.2857, -0.507, -0.026),
        ((59, 6, 16, 80), -0.0621, -0.119, -0.005),
        ((14, 5, 0, 22), 0.1220, 0.011, 0.226),
    ],
)
def test_paired_limits_are_the_published_ones(
    table: tuple[int, int, int, int], difference: float, low: float, high: float
) -> None:
    found = paired_difference(pairs(*table))
    assert (found.both, found.only_condition, found.only_base, found.neither) == table
    assert found.n == sum(table)
    assert found.difference == pytest.approx(difference, abs=5e-5)
    assert found.ci_low == pytest.approx(low, abs=6e-4)
    assert found.ci_high == pytest.approx(high, abs=6e-4)


@pytest.mark.parametrize(("wins", "losses"), [(1, 7), (6, 16), (0, 5), (3, 3), (0, 0), (12, 2)])
def test_p_is_the_two_sided_binomial_on_the_discordant_pairs(wins: int, losses: int) -> None:
    found = paired_difference(pairs(10, wins, losses, 9))
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert found.p_value == pytest.approx(expected)


def test_only_the_pairing_matters_not_the_levels() -> None:
    correlated = paired_difference(pairs(100, 12, 4, 100))
    crossed = paired_difference(pairs(58, 54, 46, 58))
    assert correlated.difference == crossed.difference
    assert correlated.ci_high - correlated.ci_low < 0.6 * (crossed.ci_high - crossed.ci_low)


@pytest.mark.parametrize("table", [(5, 0, 0, 0), (0, 0, 0, 5), (0, 5, 0, 0), (0, 0, 5, 0)])
def test_degenerate_tables_have_finite_limits(table: tuple[int, int, int, int]) -> None:
    found = paired_difference(pairs(*table))
    assert found.ci_low is not None and found.ci_high is not None
    assert -1 <= found.ci_low <= found.difference <= found.ci_high <= 1
    assert found.ci_low < found.ci_high


def test_swapping_the_conditions_mirrors_the_result() -> None:
    one, other = paired_difference(pairs(20, 9, 3, 8)), paired_difference(pairs(20, 3, 9, 8))
    assert one.difference == -other.difference
    assert one.ci_low == pytest.approx(-other.ci_high)
    assert one.p_value == other.p_value


def test_no_pairs_give_no_numbers() -> None:
    found = paired_difference([])
    assert found.n == 0
    assert (found.difference, found.ci_low, found.p_value) == (None, None, None)
    assert found.discordant_share is None


def test_holm_by_hand() -> None:
    # sorted .01 .02 .03 .04 times 4 3 2 1, then made monotone: .04 .06 .06 .06
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.7, 0.6]) == pytest.approx([1.0, 1.0])


def test_holm_leaves_untestable_contrasts_out_of_the_family() -> None:
    assert holm([None, 0.02, None, 0.03]) == [None, pytest.approx(0.04), None, pytest.approx(0.04)]
    assert holm([None]) == [None]
    assert holm([]) == []


def test_interaction_by_hand() -> None:
    # scores: 1-0-0+0 = 1, 0-1-1+0 = -2, 1-1-1+1 = 0, 0-0-0+1 = 1: mean 0
    rows = [(True, False, False, False), (False, True, True, False),
            (True, True, True, True), (False, False, False, True)]  # fmt: skip
    found = interaction({"code": rows})
    assert (found.n, found.estimate) == (4, 0.0)
    assert found.ci_low < 0 < found.ci_high
    assert interaction({"code": rows}) == found
    assert interaction({"code": rows}, seed=1).seed == 1


def test_interaction_limits_agree_with_the_normal_ones_and_respect_strata() -> None:
    rows = [(True, False, False, False)] * 300 + [(False, False, False, False)] * 300
    found = interaction({"all": rows})
    assert found.ci_high - 0.5 == pytest.approx(1.96 * math.sqrt(0.25 / 600), rel=0.06)
    # strata without spread inside leave nothing to resample
    still = interaction({"a": rows[:300], "b": rows[300:]})
    assert (still.ci_low, still.ci_high) == (0.5, 0.5)
    assert interaction({}).estimate is None


def enumerated_power(n: int, share: float, difference: float, alpha: float) -> float:
    """Power by summing over every (wins, losses): slow and plain."""
    win, lose = (share + difference) / 2, (share - difference) / 2
    power = 0.0
    for wins, losses in product(range(n + 1), repeat=2):
        if wins + losses <= n and wins + losses > 0:
            discordant = wins + losses
            if stats.binomtest(wins, discordant).pvalue <= alpha:
                power += stats.multinomial.pmf(
                    [wins, losses, n - discordant], n, [win, lose, 1 - win - lose]
                )
    return power


def test_detectable_difference_reaches_its_power_exactly() -> None:
    smallest = detectable_difference(40, discordant_share=0.4)
    assert smallest is not None
    assert enumerated_power(40, 0.4, smallest / 100, 0.05) == pytest.approx(0.8, abs=1e-4)


@pytest.mark.parametrize(
    ("n", "alpha", "expected"),
    [
        (512, 0.05, 4.9),
        (512, 0.05 / 24, 6.7),
        (224, 0.05, 7.5),
        (148, 0.05, 9.1),
        (140, 0.05, 9.4),
        (140, 0.05 / 24, 12.4),
    ],
)
def test_detectable_difference_at_the_sizes_of_the_study(
    n: int, alpha: float, expected: float
) -> None:
    assert detectable_difference(n, alpha=alpha) == pytest.approx(expected, abs=0.06)


def test_a_sample_too_small_to_show_anything_says_so() -> None:
    assert detectable_difference(24) is None
    for wrong in ({"n": 0}, {"n": 9, "power": 1.0}, {"n": 9, "alpha": 0.0}):
        with pytest.raises(ParameterError):
            detectable_difference(**wrong)


def test_complete_samples_counts_each_reason_once() -> None:
    found = complete_samples(
        {
            "whole": {"EN": True, "KO": False},
            "half": {"EN": True},
            "turned away": {"EN": "rejected", "KO": "no_verdict"},
            "unjudged": {"EN": "no_verdict", "KO": True},
            "broken": {"EN": "reference_error", "KO": "reference_error"},
        },
        ["EN", "KO"],
    )
    assert found.passed == {"whole": {"EN": True, "KO": False}}
    assert found.left_out == {
        "half": "missing",
        "turned away": "rejected",
        "unjudged": "no_verdict",
        "broken": "reference_error",
    }
    with pytest.raises(ParameterError, match="lost"):
        complete_samples({"s": {"EN": "lost"}}, ["EN"])
