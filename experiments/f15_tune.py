"""Tuning: the recipe that `tune` finds, against the default, on prompts that chose nothing."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Finding, estimated, not_run
from distillspec.report.outcome_figures import Dots, dots
from distillspec.report.reading import interval
from distillspec.studies.findings import outcome, place, said
from distillspec.studies.results import Results

CLAIM = (
    "The recipe found by `tune` beats the default after the same seconds (no claim of the paper)."
)


def finding(results: Results) -> Finding:
    """Read the paired differences that step `tuned` stored."""
    found = {place(row["axes"]): row["result"] for row in results.of("tuned")}
    if not found:
        return not_run("15", CLAIM, "tuned")
    gains = {place: one["tau_difference"] for place, one in found.items()}
    return Finding(
        "15",
        CLAIM,
        outcome(list(gains.values())),
        "; ".join(
            f"{place}: {one['winner']} over {one['against']} {said(gains[place])}"
            for place, one in found.items()
        ),
        ("task", "recipe", "τ", "below the winner"),
        tuple(
            (place, c["name"], estimated(c["tau"]), estimated(c["below_winner"]))
            for place, one in found.items()
            for c in one["candidates"]
            if c["rungs"]
        ),
        dots(
            list(gains),
            ["τ"],
            [
                Dots(
                    "τ of the winner over the default",
                    tuple((interval(g),) for g in gains.values()),
                )
            ],
        ),
    )


if __name__ == "__main__":
    main(finding)
