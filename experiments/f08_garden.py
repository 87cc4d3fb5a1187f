"""Finding 8 (Fig. 6, C.29, C.30): the model garden, quality against latency."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, curves, estimated, not_run
from distillspec.report.reading import interval
from distillspec.studies.estimates import Estimate
from distillspec.studies.findings import outcome
from distillspec.studies.results import Results

CLAIM = (
    "A distilled model of a smaller size with a distilled draft answers several times sooner than "
    "the large raw model at little loss (Fig. 6): at least twice, at two points at most, we say."
)
SUFFIX, TIMES, POINTS = "DistillSpec", 2.0, 2.0


def above(value, least):
    """Shift an estimate, so that 0 is what it must be above."""
    return Estimate(**{key: value[key] - least for key in ("value", "low", "high")})


def finding(results: Results) -> Finding:
    """Hold speed and quality of step `garden`'s smaller DistillSpec ways against the first way."""
    margins, rows, lines, said = [], [], [], []
    for row in results.of("garden"):
        points = row["result"]["points"]
        for p in points:
            rows.append(
                (p["way"], estimated(p["quality"], 1), estimated(p["latency"]))
                + (estimated(p["speedup"], 2), "front" if p["front"] else p["dominated_by"] or "")
            )
            lines.append(Curve(p["way"], (p["latency"]["value"],), (interval(p["quality"]),)))
            if p["way"].endswith(SUFFIX):
                gain, change = p["speedup"], p["quality_difference"]
                if p["target"] != points[0]["target"]:
                    margins += [above(gain, TIMES), above(change, -POINTS)]
                place = "on the front" if p["front"] else "off the front"
                said.append(
                    f"{p['way']}: {estimated(gain, 2)} times as fast as the first, "
                    f"quality {change['value']:+.1f}, {place}"
                )
        said.append(row["result"]["verdict"])
    if not margins:
        return not_run("8", CLAIM, "garden with ways of smaller models named DistillSpec")
    return Finding(
        "8",
        CLAIM,
        outcome(margins),
        "; ".join(said),
        ("way", "quality", "seconds a prompt", "speed-up", "front"),
        tuple(rows),
        curves(lines, "seconds a prompt", "quality (points)", joined=False),
        "The paper: XSum, latency 17.3 to 2.7 (6.4 times); GSM8K, 15.0 to 1.4 (10.7 times).",
    )


if __name__ == "__main__":
    main(finding)
