"""Finding 12 (Fig. C.18): cross-entropy between target and draft, GKD against SeqKD (BiLD)."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Finding, estimated, not_run
from distillspec.report.outcome_figures import Dots, dots
from distillspec.report.reading import interval
from distillspec.studies.estimates import Estimate
from distillspec.studies.findings import outcome, place, said
from distillspec.studies.results import Results

CLAIM = (
    "After the same training GKD has brought the draft nearer the target than SeqKD (Fig. C.18)."
)


def finding(results: Results) -> Finding:
    """Compare the cross-entropies of step `bounds`; their intervals are taken as unpaired."""
    gains, rows, names, values = [], [], [], []
    for row in results.of("bounds"):
        found = {}
        for key, source in row["sources"].items():
            for one in row["result"]["drafts"]:
                if key in one["draft"] and source["step"] == "distilled":
                    found[source["axes"]["recipe"]] = one["cross_entropy"]
        where = place(row["axes"])
        for recipe, value in found.items():
            rows.append((where, recipe, estimated(value)))
            names.append(f"{where} {recipe}")
            values.append((interval(value),))
        if {"gkd", "seqkd"} <= set(found):
            far, near = found["seqkd"], found["gkd"]
            low, high = far["low"] - near["high"], far["high"] - near["low"]
            gains.append(Estimate(value=far["value"] - near["value"], low=low, high=high))
    if not gains:
        return not_run("12", CLAIM, "bounds with drafts of distilled (gkd and seqkd)")
    return Finding(
        "12",
        CLAIM,
        outcome(gains),
        "Cross-entropy under SeqKD less that under GKD, nats a token: "
        f"{'; '.join(map(said, gains))}.",
        ("measured", "recipe", "cross-entropy, nats a token"),
        tuple(rows),
        dots(names, ["CE"], [Dots("cross-entropy, nats a token", tuple(values))]),
    )


if __name__ == "__main__":
    main(finding)
