"""Finding 9 (Fig. 1, C.1-C.5): a distilled draft on other tasks, and beside other targets."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Finding, estimated, not_run
from distillspec.report.outcome_figures import Dots, dots
from distillspec.report.reading import interval
from distillspec.studies.findings import outcome, tally
from distillspec.studies.results import Results

CLAIM = (
    "A draft distilled on one task is better on others too, and beside a larger target (Fig. 1)."
)


def finding(results: Results) -> Finding:
    """Read the paired differences that `transfer` stored, the distilled draft's over the first."""
    gains, rows, names, tasks, targets = [], [], [], set(), set()
    for row in results.of("transferred"):
        for cell in row["result"]["cells"]:
            tasks.add(cell["task"])
            targets.add(cell["target"])
            for one in cell["comparison"]:
                gains.append(one["tau_difference"])
                place = f"T={row['result']['temperature']:g} {cell['target']} {cell['task']}"
                rows.append(
                    (
                        place,
                        str(one["gamma"]),
                        estimated(gains[-1]),
                        estimated(one["alpha_difference"]),
                    )
                )
                names.append(place)
    if not gains:
        return not_run("9", CLAIM, "transferred")
    judged = outcome(gains)
    if judged == "holds" and len(targets) < 2:
        judged = "undecided"  # half of the claim was not run
    return Finding(
        "9",
        CLAIM,
        judged,
        f"τ of the distilled draft over the one before: {tally(gains)}. Tasks: {len(tasks)}; "
        f"targets: {len(targets)}{'' if len(targets) > 1 else ', so that no larger one was run'}.",
        ("target and task", "γ", "τ difference", "α difference"),
        tuple(rows),
        dots(
            names,
            ["τ"],
            [Dots("τ over the draft before", tuple((interval(g),) for g in gains), even=0.0)],
        ),
        "The paper, GSM8K draft on 23 BBH tasks, γ = 5: mean τ 2.98 → 3.19 at T = 0, "
        "2.81 → 3.03 at T = 1.",
    )


if __name__ == "__main__":
    main(finding)
