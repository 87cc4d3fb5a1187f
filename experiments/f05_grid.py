"""Finding 5 (Fig. 4, C.20, C.22): the gain in block efficiency by divergence and data."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Finding, estimated, not_run
from distillspec.report.outcome_figures import Dots, dots
from distillspec.report.reading import interval
from distillspec.studies.findings import counts_of, labels_of, outcome, place, tally
from distillspec.studies.results import Results

CLAIM = "Every divergence on model-generated data raises τ, greedy and sampled (Fig. 4)."


def finding(results: Results) -> Finding:
    """Hold every divergence and kind of data of step `grid` against the draft before, paired."""
    gains, rows, names, values = [], [], [], []
    for row in results.of("grid-measured"):
        raw = counts_of(row, "draft")
        for divergence in labels_of(row, "grid", "divergence"):
            for data in labels_of(row, "grid", "mixture"):
                counts = counts_of(row, "grid", divergence=divergence, mixture=data)
                if counts is None or raw is None:
                    continue
                gain = counts.tau_above(raw)
                if data != "fixed":
                    gains.append(gain)
                where = place(row["axes"])
                rows.append((where, divergence, data, estimated(gain)))
                names.append(f"{where} {divergence} {data}")
                values.append((interval(gain),))
    if not gains:
        return not_run("5", CLAIM, "grid-measured with drafts of grid")
    return Finding(
        "5",
        CLAIM,
        outcome(gains),
        f"τ over no distillation on model-generated data: {tally(gains)}.",
        ("measured", "divergence", "data", "τ gain"),
        tuple(rows),
        dots(names, ["τ gain"], [Dots("τ over no distillation", tuple(values), even=0.0)]),
    )


if __name__ == "__main__":
    main(finding)
