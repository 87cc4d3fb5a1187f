"""Theory: Theorem 4.1's bound, and Pinsker's, against the acceptance of every draft trained."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Curve, Finding, curves, estimated, not_run
from distillspec.report.reading import interval
from distillspec.studies.estimates import Estimate
from distillspec.studies.findings import outcome, title
from distillspec.studies.results import Results

CLAIM = "Acceptance is at least what Theorem 4.1 and Pinsker's inequality say."


def finding(results: Results) -> Finding:
    """Subtract each bound of step `bounds` from the acceptance that it bounds."""
    slack, rows, at = [], [], {"Pinsker": ([], []), "Theorem 4.1": ([], [])}
    empty = 0
    for row in results.of("bounds"):
        for key, source in row["sources"].items():
            for one in (draft for draft in row["result"]["drafts"] if key in draft["draft"]):
                alpha = one["alpha"]
                for name, bound in (("Pinsker", one["pinsker"]), ("Theorem 4.1", one["theorem"])):
                    low, high = alpha["low"] - bound["high"], alpha["high"] - bound["low"]
                    slack.append(
                        Estimate(value=alpha["value"] - bound["value"], low=low, high=high)
                    )
                    at[name][0].append(max(0.0, bound["value"]))
                    at[name][1].append(interval(alpha))
                    empty += bound["high"] <= 0
                rows.append(
                    (title(source), estimated(alpha))
                    + (estimated(one["pinsker"]), estimated(one["theorem"]), estimated(one["kl"]))
                )
    if not slack:
        return not_run("14", CLAIM, "bounds")
    least = min(one["value"] for one in slack)
    return Finding(
        "14",
        CLAIM,
        outcome(slack),
        f"Acceptance less its bound: {least:+.3f} or more in all {len(slack)} cases, of which "
        f"{empty} say nothing, as the bound is not above 0 (drawn at 0).",
        ("draft", "α", "at least, by Pinsker", "at least, by Theorem 4.1", "KL, nats a token"),
        tuple(rows),
        curves(
            [Curve(name, tuple(x), tuple(y)) for name, (x, y) in at.items()],
            "lower bound",
            "α",
            joined=False,
        ),
    )


if __name__ == "__main__":
    main(finding)
