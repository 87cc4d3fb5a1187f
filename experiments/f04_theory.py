"""Finding 4 (Fig. 3c): the block efficiency forecast, against what the engine counts."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, curves, not_run
from distillspec.report.reading import Interval, interval
from distillspec.studies.findings import mean_rank_correlation, measurements, outcome, place, said
from distillspec.studies.results import Results

CLAIM = "The theoretical τ agrees with the counted one and keeps the drafts' ranking (Fig. 3c)."
CHANCE = 4.0
"""|z| up to this is the luck of the draws: once in 16,000."""


def finding(results: Results) -> Finding:
    """Rank the drafts of each cell by recursion, by the i.i.d. formula, and by count."""
    rows, cells, taus, at, z = [], {}, [], [], []
    for row in results.of("measured"):
        where = place(row["axes"])
        for name, one in measurements(row).items():
            for gamma in (some for some in one["gammas"] if "tau_counted" in some):
                exact, counted = gamma["tau_forecast"]["value"], gamma["tau_counted"]["value"]
                taus.append((exact, gamma["tau_iid"], counted))
                cells.setdefault((where, gamma["gamma"]), []).append(taus[-1])
                at.append(interval(gamma["tau_counted"]))
                z.append(gamma["forecast_z"])
                rows.append((f"{where} {name}".strip(), str(gamma["gamma"])))
                rows[-1] += tuple(f"{value:.3f}" for value in taus[-1])
    sides = [tuple(zip(*cell, strict=True)) for cell in cells.values() if len(cell) > 2]
    ranked = [cell for cell in sides if all(len(set(side)) > 1 for side in cell)]
    if len(ranked) < 2:
        return not_run("4", CLAIM, "measured with two cells of three drafts on the clock")
    by = {
        "the exact recursion": mean_rank_correlation([(cell[0], cell[2]) for cell in ranked]),
        "the i.i.d. formula": mean_rank_correlation([(cell[1], cell[2]) for cell in ranked]),
    }
    exact, formula, counted = zip(*taus, strict=True)
    off = [max(abs(a - b) for a, b in zip(some, counted, strict=True)) for some in (exact, formula)]
    beyond = sum(one is not None and abs(one) > CHANCE for one in z)
    lawless = sum(one is None for one in z)  # without variance, and yet not equal
    judged = "does not hold" if beyond else outcome(list(by.values()))
    same = Curve("equal", tuple(sorted(exact)), tuple(Interval(x, x, x) for x in sorted(exact)))
    return Finding(
        "4",
        CLAIM,
        "undecided" if lawless and judged == "holds" else judged,
        f"Mean rank correlation with the counted τ within {len(ranked)} cells: "
        + "; ".join(f"{name} {said(value, 2)}" for name, value in by.items())
        + f"; furthest from it by {off[0]:.2f} and {off[1]:.2f}. On the runs' own outputs the "
        f"counts are the recursion's, as far as chance lets tell (|z| at most {CHANCE:g}), in "
        f"{len(z) - beyond - lawless} of {len(z)}, beyond chance others in {beyond}, and others "
        f"where nothing is left to chance in {lawless}. The clock ran fewer prompts than were "
        "forecast.",
        ("draft", "γ", "exact", "i.i.d.", "counted"),
        tuple(rows),
        curves(
            [
                Curve("exact recursion", exact, tuple(at)),
                Curve("i.i.d. formula", formula, tuple(at)),
                same,
            ],
            "forecast τ",
            "counted τ",
            joined=False,
        ),
    )


if __name__ == "__main__":
    main(finding)
