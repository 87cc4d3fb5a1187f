"""Finding 3 (Fig. 3b, C.16): block efficiency of every example, before and after."""

import numpy as np

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, curves, not_run
from distillspec.report.reading import Interval
from distillspec.studies.estimates import estimate
from distillspec.studies.findings import counts_of, labels_of, outcome, place, said
from distillspec.studies.results import Results

CLAIM = "Distillation raises τ on nearly all examples (Fig. 3b): on nine of ten, we say."
RECIPE, SHARE = "gkd", 0.9


def finding(results: Results) -> Finding:
    """Count the prompts whose τ rose, of the draft distilled by GKD over the one before."""
    lines, rows, shares = [], [], []
    for row in results.of("measured"):
        before = counts_of(row, "draft")
        after = (
            counts_of(row, "distilled", recipe=RECIPE)
            if labels_of(row, "distilled", "recipe")
            else None
        )
        if before is None or after is None:
            continue
        where = place(row["axes"])
        taus = {"before": before.lengths / before.calls, "after": after.lengths / after.calls}
        rose = (taus["after"] > taus["before"] + 1e-9).astype(float)
        shares.append(
            estimate(lambda s: s[:, 0] / s[:, 1] - SHARE, np.stack([rose, np.ones_like(rose)], 1))
        )
        for name, tau in taus.items():
            points = tuple(Interval(float(t), float(t), float(t)) for t in np.sort(tau)[::-1])
            lines.append(Curve(f"{where} {name}", tuple(range(1, len(points) + 1)), points))
        rows += [
            (where, str(i), f"{a:.3f}", f"{b:.3f}")
            for i, (a, b) in enumerate(zip(*taus.values(), strict=True))
        ]
    if not shares:
        return not_run("3", CLAIM, f"measured with drafts of distilled ({RECIPE})")
    return Finding(
        "3",
        CLAIM,
        outcome(shares),
        f"Share of prompts with a higher τ, less {SHARE:g}: {'; '.join(map(said, shares))}.",
        ("measured", "prompt", "τ before", "τ after"),
        tuple(rows),
        curves(
            lines[:4],
            "prompts, by τ" + (" (the first two cells)" if len(lines) > 4 else ""),
            "τ",
            joined=False,
        ),
    )


if __name__ == "__main__":
    main(finding)
