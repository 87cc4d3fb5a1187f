"""Finding 6 (Fig. 5a, C.23, C.24): gain in task quality against gain in block efficiency."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, curves, estimated, not_run
from distillspec.report.reading import interval
from distillspec.studies.estimates import Estimate
from distillspec.studies.findings import counts_of, rank_correlation, said
from distillspec.studies.results import Results

CLAIM = (
    "The gain in a draft's own task quality says little of its gain in τ (Fig. 5a): |ρ| below 0.5, "
    "we say."
)
WEAK = 0.5


def finding(results: Results) -> Finding:
    """Correlate the quality of drafts alone (step `draft-quality`, a garden) with their τ."""
    pairs: list[tuple[str, Estimate, Estimate]] = []
    for garden in results.of("draft-quality"):
        for row in results.of("grid-measured"):
            raw = counts_of(row, "draft")
            for key, source in row["sources"].items():
                point = next((p for p in garden["result"]["points"] if key in p["target"]), None)
                if source["step"] != "grid" or point is None or raw is None:
                    continue
                counts = counts_of(row, "grid", **source["axes"])
                if counts is not None:
                    name = " ".join([*source["axes"].values(), *row["axes"].values()])
                    pairs.append((name, counts.tau_above(raw), point["quality_difference"]))
    if len(pairs) < 3:
        return not_run("6", CLAIM, "draft-quality with drafts of grid")
    gains = [gain["value"] for _, gain, _ in pairs]
    correlation = rank_correlation(gains, [quality["value"] for _, _, quality in pairs])
    low, high = correlation["low"], correlation["high"]
    weak, strong = low > -WEAK and high < WEAK, low >= WEAK or high <= -WEAK
    return Finding(
        "6",
        CLAIM,
        "holds" if weak else "does not hold" if strong else "undecided",
        f"Rank correlation over {len(pairs)} drafts: {said(correlation, 2)}.",
        ("draft", "τ gain", "quality gain"),
        tuple((name, estimated(gain), estimated(quality, 1)) for name, gain, quality in pairs),
        curves(
            [Curve("drafts", tuple(gains), tuple(interval(quality) for _, _, quality in pairs))],
            "τ gain",
            "quality gain (points)",
            joined=False,
        ),
    )


if __name__ == "__main__":
    main(finding)
