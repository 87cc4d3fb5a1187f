"""Finding 11 (Fig. C.17): the temperature that the training data is sampled at."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, curves, estimated, not_run
from distillspec.report.reading import interval
from distillspec.studies.findings import counts_of, labels_of, outcome, place, said
from distillspec.studies.results import Results

CLAIM = "Data sampled at a low temperature distils worse than data sampled at 1 (Fig. C.17)."


def finding(results: Results) -> Finding:
    """Hold drafts of step `cooled` on data at T = 1 against those at lower T, paired by prompt."""
    lines, rows, gains = [], [], []
    for row in results.of("cooled-measured"):
        labels = sorted(labels_of(row, "cooled", "temperature"), key=float)
        by = {one: counts_of(row, "cooled", temperature=one) for one in labels}
        found = {float(one): counts for one, counts in by.items() if counts is not None}
        if 1.0 not in found or len(found) < 2:
            continue
        where = place(row["axes"]) or "all"
        gains += [found[1.0].tau_above(counts) for at, counts in found.items() if at < 1]
        lines.append(
            Curve(where, tuple(found), tuple(interval(counts.tau) for counts in found.values()))
        )
        rows += [
            (where, f"{at:g}", estimated(counts.tau), estimated(counts.alpha))
            for at, counts in found.items()
        ]
    if not gains:
        return not_run("11", CLAIM, "cooled-measured with drafts of cooled")
    return Finding(
        "11",
        CLAIM,
        outcome(gains),
        f"τ after data at T = 1 over τ after data at a lower T: {'; '.join(map(said, gains))}.",
        ("measured", "temperature of the data", "τ", "α"),
        tuple(rows),
        curves(lines, "temperature of the data", "τ"),
    )


if __name__ == "__main__":
    main(finding)
