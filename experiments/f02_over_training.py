"""Finding 2 (Fig. 3a, C.12-C.14): acceptance over training steps and wall time."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, curves, estimated, not_run
from distillspec.report.reading import interval
from distillspec.studies.findings import evaluations, outcome, said, title
from distillspec.studies.results import Results

CLAIM = "After the same wall time on-policy GKD is ahead of every other recipe (Fig. 3a)."


def ahead(first, second):
    """Estimate the difference in τ where the shorter of two trainings ended, paired."""
    end = min(first[-1][1], second[-1][1])  # seconds of training
    mine, theirs = (min(tests, key=lambda one: abs(one[1] - end)) for tests in (first, second))
    return mine[2].tau_above(theirs[2])


def finding(results: Results) -> Finding:
    """Compare the held-out τ of `distilled` cells after equal seconds of training, paired."""
    lines, rows, ends = [], [], {}
    for row in results.of("distilled"):
        tests = evaluations(row)
        if not tests:
            continue
        lines.append(
            Curve(
                title(row),
                tuple(seconds / 60 for _, seconds, _ in tests),
                tuple(interval(counts.tau) for _, _, counts in tests),
            )
        )
        rows += [
            (
                title(row),
                str(step),
                f"{seconds:.0f}",
                estimated(counts.tau),
                estimated(counts.alpha),
            )
            for step, seconds, counts in tests
        ]
        place = tuple(sorted((a, label) for a, label in row["axes"].items() if a != "recipe"))
        ends.setdefault(place, {})[row["axes"].get("recipe")] = tests
    if not lines:
        return not_run("2", CLAIM, "distilled with evaluations")
    pairs = {
        " ".join([recipe, *(label for _, label in place)]): ahead(one["gkd"], tests)
        for place, one in ends.items()
        for recipe, tests in one.items()
        if recipe != "gkd" and "gkd" in one
    }
    return Finding(
        "2",
        CLAIM,
        outcome(list(pairs.values())),
        "τ of GKD over that of another recipe after the same time: "
        + ("; ".join(f"{name} {said(change)}" for name, change in pairs.items()) or "not run")
        + ".",
        ("cell", "step", "seconds", "τ", "α"),
        tuple(rows),
        curves(lines, "minutes of training", "τ on held-out prompts"),
    )


if __name__ == "__main__":
    main(finding)
