"""Finding 13 (Table C.1): block efficiency and speed-up by task, temperature and gamma."""

from distillspec.commands.study_report import main
from distillspec.report.findings import Finding, estimated, not_run
from distillspec.report.outcome_figures import Dots, dots
from distillspec.report.reading import interval
from distillspec.studies.findings import (
    counts_of,
    labels_of,
    measurements,
    outcome,
    place,
    speedup_changes,
    tally,
)
from distillspec.studies.results import Results

CLAIM = "Distillation raises τ and the speed-up at every task, temperature and γ (Table C.1)."
RECIPE = "gkd"
STEPS = {"measured": ("draft", "distilled"), "other-measured": ("other-draft", "other-distilled")}
PAPER = {  # τ without → with distillation, by task, T and γ
    "xsum": {"0": "2.31→2.62, 2.57→3.08, 2.68→3.31", "1": "2.19→2.58, 2.39→3.01, 2.47→3.21"},
    "cnn_dm": {"0": "2.83→3.19, 3.46→4.13, 3.85→4.83", "1": "2.49→2.87, 2.89→3.52, 3.08→3.92"},
    "wmt14_en_de": {"0": "3.22→3.30, 4.17→4.32, 4.83→5.06", "1": "2.73→2.88, 3.29→3.48, 3.54→3.85"},
    "gsm8k": {"0": "2.60→2.96, 3.06→3.68, 3.27→4.14", "1": "2.58→2.84, 3.03→3.45, 3.23→3.84"},
    "lm1b": {"0": "2.96→3.13, 3.69→3.92, 4.15→4.55", "1": "2.51→2.69, 2.90→3.20, 3.10→3.51"},
}


def finding(results: Results) -> Finding:
    """Hold the draft distilled by GKD against the one before, in τ and on the clock, paired."""
    gains, faster, rows, names, tasks = [], [], [], [], set()
    for row in (row for step in STEPS for row in results.of(step)):
        raw, distilled = STEPS[row["step"]]
        recipe = {"recipe": RECIPE} if labels_of(row, distilled, "recipe") else {}
        before, after = counts_of(row, raw), counts_of(row, distilled, **recipe)
        if before is None or after is None:
            continue
        gains.append(after.tau_above(before))
        faster += speedup_changes(row, distilled, raw, **recipe)
        tasks |= set(row["axes"].values()) & set(PAPER)
        speeds = {}
        for name, one in measurements(row).items():
            (gamma,) = one["gammas"]
            if name.startswith(raw) or not recipe or RECIPE in name.split():
                gain = gamma.get("speedup_measured", gamma["speedup_forecast"])
                how = "" if "speedup_measured" in gamma else " forecast"
                speeds[name.startswith(raw)] = estimated(gain, 2) + how
        names.append(place(row["axes"]))
        rows.append(
            (names[-1], estimated(before.tau, 2), estimated(after.tau, 2), estimated(gains[-1]))
            + (speeds.get(True, ""), speeds.get(False, ""))
        )
    if not gains:
        return not_run("13", CLAIM, "measured with drafts of distilled (gkd)")
    judged = outcome([*gains, *faster])
    theirs = "; ".join(
        f"{one} T = {t}: {said}" for one in sorted(tasks) for t, said in PAPER[one].items()
    )
    return Finding(
        "13",
        CLAIM,
        "undecided" if judged == "holds" and not faster else judged,
        f"With over without distillation: τ {tally(gains)}; measured speed-up "
        + (f"{tally(faster)}." if faster else "not run."),
        ("cell", "τ without", "τ with", "difference", "speed-up without", "speed-up with"),
        tuple(rows),
        dots(names, ["τ"], [Dots("τ gain", tuple((interval(g),) for g in gains), even=0.0)]),
        f"The paper's τ at γ = 3, 5, 7, on its own models: {theirs}." if theirs else "",
    )


if __name__ == "__main__":
    main(finding)
