"""Finding 4 (Fig. 3c): the block efficiency forecast, against what the engine counts."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, curves, not_run
from distillspec.report.reading import Interval, interval
from distillspec.studies.findings import measurements, outcome, rank_correlation, said
from distillspec.studies.results import Results

CLAIM = "The theoretical τ agrees with the counted one and keeps the drafts' ranking (Fig. 3c)."


def finding(results: Results) -> Finding:
    """Rank the drafts that ran on the clock by recursion, by the i.i.d. formula, and by count."""
    rows, exact, formula, counted, at = [], [], [], [], []
    for row in results.of("measured"):
        for name, one in measurements(row).items():
            for gamma in one["gammas"]:
                if "tau_counted" not in gamma:
                    continue
                exact.append(gamma["tau_forecast"]["value"])
                formula.append(gamma["tau_iid"])
                counted.append(gamma["tau_counted"]["value"])
                at.append(interval(gamma["tau_counted"]))
                rows.append(
                    (" ".join([*row["axes"].values(), name]), str(gamma["gamma"]))
                    + tuple(f"{value:.3f}" for value in (exact[-1], formula[-1], counted[-1]))
                )
    if len(counted) < 3:
        return not_run("4", CLAIM, "measured with three drafts on the clock")
    by = {
        "the exact recursion": rank_correlation(exact, counted),
        "the i.i.d. formula": rank_correlation(formula, counted),
    }
    off = [max(abs(a - b) for a, b in zip(some, counted, strict=True)) for some in (exact, formula)]
    same = Curve("equal", tuple(sorted(exact)), tuple(Interval(x, x, x) for x in sorted(exact)))
    return Finding(
        "4",
        CLAIM,
        outcome(list(by.values())),
        "Rank correlation with the counted τ: "
        + "; ".join(f"{name} {said(value, 2)}" for name, value in by.items())
        + f"; furthest from it by {off[0]:.2f} and {off[1]:.2f}. "
        "The clock ran fewer prompts than were forecast.",
        ("draft", "γ", "exact", "i.i.d.", "counted"),
        tuple(rows),
        curves(
            [
                Curve("exact recursion", tuple(exact), tuple(at)),
                Curve("i.i.d. formula", tuple(formula), tuple(at)),
                same,
            ],
            "forecast τ",
            "counted τ",
            joined=False,
        ),
    )


if __name__ == "__main__":
    main(finding)
