"""What the models themselves are worth: a check of the study, not a finding of the paper."""

import math
from pathlib import Path

from distillspec.commands.study_report import main
from distillspec.report.findings import Finding, estimated, not_run
from distillspec.report.outcome_figures import Dots, dots
from distillspec.report.reading import interval
from distillspec.studies.estimates import Estimate
from distillspec.studies.findings import outcome, place, title, unpaired
from distillspec.studies.results import Results

CLAIM = (
    "No model is broken: each predicts held-out text better than the frequencies of its tokens do, "
    "and a target better than the draft made for it."
)
STEPS = {"predicted": "", "other-predicted": "other-"}


def finding(results: Results) -> Finding:
    """Compare perplexities with that of unigrams fitted to the same texts, and target with draft.

    The intervals of target and draft are taken as if unpaired, which can only widen the difference.
    """
    gains, rows, names, labels = [], [], [], []
    for row in (row for step in STEPS for row in results.of(step)):
        where = place(row["axes"]) or Path(row["result"]["prompts"]).name
        found = {}
        for key, source in row["sources"].items():
            one = next((m for m in row["result"]["models"] if key in m["model"]), None)
            if one is None:
                continue
            found[source["step"]] = one["nats_per_token"]
            unigram = math.log(one["unigram_perplexity"])
            exact = Estimate(value=unigram, low=unigram, high=unigram)
            gains.append(unpaired(exact, one["nats_per_token"]))
            names.append(f"{where}: {title(source)} than unigrams")
            model = source["axes"].get("recipe", source["step"].removeprefix("other-"))
            labels.append(f"{where}: {model} than unigrams")
            rows.append(
                (where, title(source), estimated(one["perplexity"], 1))
                + (estimated(one["bits_per_byte"], 2), f"{one['unigram_perplexity']:.1f}")
            )
        target, draft = (found.get(STEPS[row["step"]] + name) for name in ("target", "draft"))
        if target is not None and draft is not None:
            gains.append(unpaired(draft, target))
            names.append(f"{where}: target than draft")
            labels.append(f"{where}: target than draft")
    if not gains:
        return not_run("16", CLAIM, "predicted")
    missed = [name for name, gain in zip(names, gains, strict=True) if gain["low"] <= 0]
    return Finding(
        "16",
        CLAIM,
        outcome(gains),
        f"Better beyond chance in {len(gains) - len(missed)} of {len(gains)}"
        + (f"; not: {', '.join(missed)}." if missed else "."),
        ("data", "model", "perplexity", "bits a byte", "unigrams"),
        tuple(rows),
        dots(
            labels,
            ["nats"],
            [Dots("nats a token below", tuple((interval(g),) for g in gains), even=0.0)],
        ),
    )


if __name__ == "__main__":
    main(finding)
