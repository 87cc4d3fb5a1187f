"""Finding 10 (Fig. C.15): the draft's own task quality over training."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, curves, estimated, not_run
from distillspec.report.reading import interval
from distillspec.studies.findings import outcome, place, said
from distillspec.studies.results import Results

CLAIM = "Distillation raises the draft's own task quality with training (Fig. C.15)."
STEP = "quality-over-training"


def finding(results: Results) -> Finding:
    """Read the gardens of a step whose ways are called by the minutes of distillation."""
    gains, rows, lines = [], [], []
    for row in results.of(STEP):
        # The garden's differences are from its first way, the draft before distillation
        points = sorted(row["result"]["points"], key=lambda point: float(point["way"]))
        x = tuple(float(point["way"]) for point in points)
        name = place(row["axes"]) or "quality"
        lines.append(Curve(name, x, tuple(interval(point["quality"]) for point in points)))
        rows += [(name, p["way"], estimated(p["quality"], 1)) for p in points]
        gains.append(points[-1]["quality_difference"])
    if not gains:
        return not_run("10", CLAIM, STEP)
    return Finding(
        "10",
        CLAIM,
        outcome(gains),
        f"Quality after the longest training over that before: "
        f"{'; '.join(said(g, 1) for g in gains)}.",
        ("cell", "minutes", "quality"),
        tuple(rows),
        curves(lines, "minutes of distillation", "quality (points)"),
    )


if __name__ == "__main__":
    main(finding)
