"""What the models themselves are worth: a check of the study, not a finding of the paper."""

import math
from pathlib import Path

from distillspec.commands.study_report import main
from distillspec.report.findings import Finding, estimated, not_run
from distillspec.report.outcome_figures import Dots, dots
from distillspec.report.reading import interval
from distillspec.studies.estimates import Estimate
from distillspec.studies.findings import outcome, place, title
from distillspec.studies.results import Results

CLAIM = (
    "Every model predicts held-out text better than the frequencies of its tokens do: none of the "
    "results comes from a broken one."
)


def finding(results: Results) -> Finding:
    """Read the steps `predicted`: perplexities beside that of unigrams fitted to the same texts."""
    gains, rows, names, values = [], [], [], []
    for row in [*results.of("predicted"), *results.of("other-predicted")]:
        where = place(row["axes"]) or Path(row["result"]["prompts"]).name
        for key, source in row["sources"].items():
            one = next((m for m in row["result"]["models"] if key in m["model"]), None)
            if one is None:
                continue
            unigram, nats = math.log(one["unigram_perplexity"]), one["nats_per_token"]
            gain = Estimate(
                value=unigram - nats["value"],
                low=unigram - nats["high"],
                high=unigram - nats["low"],
            )
            gains.append(gain)
            names.append(f"{where}: {title(source)}")
            values.append((interval(gain),))
            rows.append(
                (where, title(source), estimated(one["perplexity"], 1))
                + (estimated(one["bits_per_byte"], 2), f"{one['unigram_perplexity']:.1f}")
            )
    if not gains:
        return not_run("16", CLAIM, "predicted")
    reached = ", ".join(
        f"{where} {cell} {value.partition(' ')[0]} (unigrams {unigram})"
        for where, cell, value, _, unigram in rows
        if cell.removeprefix("other-").startswith(("target", "draft"))
    )
    return Finding(
        "16",
        CLAIM,
        outcome(gains),
        f"Perplexity: {reached}.",
        ("data", "model", "perplexity", "bits a byte", "unigrams"),
        tuple(rows),
        dots(names, ["nats"], [Dots("nats a token below unigrams", tuple(values), even=0.0)]),
    )


if __name__ == "__main__":
    main(finding)
