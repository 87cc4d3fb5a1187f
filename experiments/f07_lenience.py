"""Finding 7 (Fig. 5b, C.25-C.28): lossy decoding, quality against latency, raw and distilled."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, curves, estimated, not_run
from distillspec.report.reading import interval
from distillspec.studies.findings import outcome, tally, unpaired
from distillspec.studies.results import Results

CLAIM = "At every lenience the distilled draft answers sooner than the raw one (Fig. 5b)."


def finding(results: Results) -> Finding:
    """Hold the relative latencies of step `traded` against one another, setting by setting.

    The intervals of the two drafts are taken as if unpaired, which can only widen the difference.
    """
    saved, rows, lines = [], [], []
    for row in results.of("traded"):
        points = row["result"]["points"]
        raw, *others = dict.fromkeys(point["draft"] for point in points)
        at = {(p["draft"], p["lenience"], p["epsilon"]): p for p in points}
        for (draft, lenience, epsilon), point in at.items():
            rows.append(
                ("raw" if draft == raw else "distilled", lenience, str(epsilon or ""))
                + (estimated(point["relative_latency"], 2), estimated(point["quality"], 1))
                + (estimated(point["tau"], 2),)
            )
            if draft in others:
                before = at[raw, lenience, epsilon]["relative_latency"]
                saved.append(unpaired(before, point["relative_latency"]))
        for draft, name in ((raw, "raw"), *((one, "distilled") for one in others)):
            own = sorted(
                (p for p in points if p["draft"] == draft),
                key=lambda p: p["relative_latency"]["value"],
            )
            x = tuple(p["relative_latency"]["value"] for p in own)
            lines.append(Curve(name, x, tuple(interval(p["quality"]) for p in own)))
    if not saved:
        return not_run("7", CLAIM, "traded with two drafts")
    return Finding(
        "7",
        CLAIM,
        outcome(saved),
        f"Relative latency of the raw draft less that of the distilled one: {tally(saved)}.",
        ("draft", "lenience", "ε", "relative latency", "quality", "τ"),
        tuple(rows),
        curves(lines, "latency relative to the target alone", "quality (points)", joined=False),
    )


if __name__ == "__main__":
    main(finding)
