"""Finding 1 again, after as many steps for each recipe as for the others."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Finding, estimated, not_run
from distillspec.report.outcome_figures import Dots, dots
from distillspec.report.reading import interval
from distillspec.studies.findings import evaluations, outcome, said
from distillspec.studies.results import Results

CLAIM = (
    "After as many steps, whatever their seconds, model-generated data beats Supervised KD (as the "
    "paper's Fig. 2 compares them)."
)


def finding(results: Results) -> Finding:
    """Compare the last evaluations of step `same-steps`, paired by prompt."""
    rows, places = [], {}
    for row in results.of("same-steps"):
        *_, (step, seconds, counts) = evaluations(row)
        recipe = row["axes"]["recipe"]
        place = " ".join(label for axis, label in row["axes"].items() if axis != "recipe")
        places.setdefault(place, {})[recipe] = counts
        rows.append((place, recipe, str(step), f"{seconds:.0f}", estimated(counts.tau)))
    gains = {
        f"{place} {recipe}": counts.tau_above(by["supervised_kd"])
        for place, by in places.items()
        for recipe, counts in by.items()
        if recipe != "supervised_kd" and "supervised_kd" in by
    }
    if not gains:
        return not_run("17", CLAIM, "same-steps with supervised_kd and another")
    return Finding(
        "17",
        CLAIM,
        outcome(list(gains.values())),
        "τ over that of Supervised KD: "
        + "; ".join(f"{name} {said(gain)}" for name, gain in gains.items())
        + ".",
        ("data", "recipe", "steps", "seconds", "τ"),
        tuple(rows),
        dots(
            list(gains),
            ["τ"],
            [Dots("τ over Supervised KD", tuple((interval(g),) for g in gains.values()), even=0.0)],
        ),
    )


if __name__ == "__main__":
    main(finding)
