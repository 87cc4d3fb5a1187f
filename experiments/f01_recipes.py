"""Finding 1 (Fig. 2, C.6-C.11): the recipes against no distillation and one another."""

from itertools import starmap

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, Panel, estimated, not_run, panels
from distillspec.report.reading import interval
from distillspec.studies.findings import counts_of, labels_of, outcome, place, tally
from distillspec.studies.results import Results

CLAIM = (
    "Every recipe beats no distillation; model-generated data beats Supervised KD; distilling from "
    "the target's probabilities beats SeqKD (Fig. 2)."
)
GENERATED, WHITE_BOX = ("imitkd", "fdistill", "gkd"), ("supervised_kd", "imitkd", "fdistill", "gkd")


def curve(recipe, points):
    """Join a recipe's gains over γ."""
    return Curve(recipe, *zip(*sorted(points), strict=True))


def finding(results: Results) -> Finding:
    """Compare the recipes of step `distilled` in the cells of `measured`, paired by prompt."""
    gains, generated, white_box, rows, points = [], [], [], [], {}
    for row in results.of("measured"):
        by = {
            one: counts_of(row, "distilled", recipe=one)
            for one in labels_of(row, "distilled", "recipe")
        }
        found = {one: counts for one, counts in by.items() if counts is not None}
        raw = counts_of(row, "draft")
        if raw is None or not found:
            continue
        where, gamma = place(row["axes"]), row["examples"][0]["gamma"]
        panel = place({axis: label for axis, label in row["axes"].items() if axis != "gamma"})
        for recipe, counts in found.items():
            gains.append(counts.tau_above(raw))
            rows.append((where, recipe, estimated(counts.tau, 2), estimated(gains[-1])))
            drawn = points.setdefault(panel, {}).setdefault(recipe, [])
            drawn.append((gamma, interval(gains[-1])))
        if "supervised_kd" in found:
            generated += [
                found[one].tau_above(found["supervised_kd"]) for one in GENERATED if one in found
            ]
        if "seqkd" in found:
            white_box += [found[one].tau_above(found["seqkd"]) for one in WHITE_BOX if one in found]
    if not gains:
        return not_run("1", CLAIM, "measured with drafts of distilled")
    parts = {
        "over no distillation": gains,
        "generated data over Supervised KD": generated,
        "white-box over SeqKD": white_box,
    }
    return Finding(
        "1",
        CLAIM,
        outcome([*gains, *generated, *white_box]),
        "Differences in τ "
        + "; ".join(f"{name}: {tally(some)}" for name, some in parts.items())
        + ".",
        ("measured", "recipe", "τ", "τ over no distillation"),
        tuple(rows),
        panels(
            [Panel(title, tuple(starmap(curve, by.items()))) for title, by in points.items()],
            "γ, drafted tokens per block",
            "τ over no distillation",
            even=0.0,
        ),
    )


if __name__ == "__main__":
    main(finding)
