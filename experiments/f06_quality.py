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
    """Correlate the quality of drafts alone (step `draft-quality`, a garden) with their τ.

    In each cell of `grid-measured` by itself: the same drafts at another temperature are no more
    drafts.
    """
    by: dict[str, list[tuple[str, Estimate, Estimate]]] = {}
    for garden in results.of("draft-quality"):
        for row in results.of("grid-measured"):
            raw = counts_of(row, "draft")
            for key, source in row["sources"].items():
                point = next((p for p in garden["result"]["points"] if key in p["target"]), None)
                if source["step"] != "grid" or point is None or raw is None:
                    continue
                counts = counts_of(row, "grid", **source["axes"])
                if counts is not None:
                    place = " ".join(f"{axis} {label}" for axis, label in row["axes"].items())
                    name = " ".join(source["axes"].values())
                    pair = (name, counts.tau_above(raw), point["quality_difference"])
                    by.setdefault(place, []).append(pair)
    by = {place: pairs for place, pairs in by.items() if len(pairs) > 2}
    if not by:
        return not_run("6", CLAIM, "draft-quality with drafts of grid")
    gains = {place: [gain["value"] for _, gain, _ in pairs] for place, pairs in by.items()}
    found = {
        place: rank_correlation(gains[place], [quality["value"] for _, _, quality in pairs])
        for place, pairs in by.items()
    }
    weak = all(one["low"] > -WEAK and one["high"] < WEAK for one in found.values())
    strong = any(one["low"] >= WEAK or one["high"] <= -WEAK for one in found.values())
    return Finding(
        "6",
        CLAIM,
        "holds" if weak else "does not hold" if strong else "undecided",
        "Rank correlation: "
        + "; ".join(
            f"{place or 'all'}, {len(by[place])} drafts, {said(one, 2)}"
            for place, one in found.items()
        )
        + ".",
        ("measured", "draft", "τ gain", "quality gain"),
        tuple(
            (place, name, estimated(gain), estimated(quality, 1))
            for place, pairs in by.items()
            for name, gain, quality in pairs
        ),
        curves(
            [
                Curve(place, tuple(gains[place]), tuple(interval(one) for _, _, one in pairs))
                for place, pairs in by.items()
            ],
            "τ gain",
            "quality gain (points)",
            joined=False,
        ),
    )


if __name__ == "__main__":
    main(finding)
