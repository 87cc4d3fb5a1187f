"""The page's parts that show drafts beside one another, and training."""

from __future__ import annotations

from collections.abc import Sequence

from distillspec.report.drafts import Comparison, Examples, ids_of
from distillspec.report.figures import sorted_taus
from distillspec.report.outcome_figures import Dots, dots
from distillspec.report.tables import (
    NOT_MEASURED,
    Content,
    Drawing,
    Section,
    Table,
    Verdict,
    brief,
    estimate,
    fixed,
    table,
)
from distillspec.report.training import Training
from distillspec.report.training_figures import training_curves

ROWS = 200
"""At most so many prompts are listed in a table."""


def comparison_content(
    compared: Sequence[Comparison], found: Sequence[Examples], rule: str
) -> Content:
    """Assemble what the page says of paired differences and of single prompts.

    Args:
        compared: One draft against another each; from `measure` or a demo.
        found: τ of every prompt, for the figure.
        rule: The acceptance rule they belong to.
    """
    drawings = [_sorted(found, rule)] if found else []
    drawings += [
        _differences(one, index, rule) for index, one in enumerate(compared) if one.domains
    ]
    sections = []
    if compared:
        tables = [_summary(compared), *(_worse(one) for one in compared if one.worse)]
        first = compared[0]
        title = (
            "After distillation, against the control"
            if (first.draft, first.against) == ("after", "control")
            else "Drafts compared"
        )
        intro = (
            "Paired differences on the same prompts: below each value its 95 % interval. One that "
            f"excludes 0 is a difference beyond chance. Acceptance rule: {rule}."
        )
        sections.append(Section(title, intro, tuple(tables)))
    return Content((), tuple(drawings), tuple(sections))


def training_content(trained: Sequence[Training], *, alone: bool) -> Content:
    """Assemble what the page says of training.

    Args:
        trained: One run each.
        alone: Whether nothing else answers for the run, so that training gives the verdicts.
    """
    if not trained:
        return Content()
    by_step = (
        "Training by steps; each point of a line joins consecutive steps. α is that of the ratio "
        "rule with a sampled draft. Losses of different objectives (cross-entropy, a divergence) "
        "do not compare; α and τ do."
    )
    by_second = "The same by seconds, which is what training costs. α is that of the ratio rule."
    data = _points(trained)
    drawings = (
        Drawing("training-steps", by_step, training_curves(trained, "step"), data),
        Drawing("training-seconds", by_second, training_curves(trained, "seconds"), data),
    )
    section = Section("Training", "", (_totals(trained),))
    verdicts = tuple(Verdict(one.name, _sentence(one)) for one in trained) if alone else ()
    return Content(verdicts, drawings, (section,))


def _sorted(found: Sequence[Examples], rule: str) -> Drawing:
    ids = ids_of(found)
    same = len({one.gamma for one in found}) == 1
    at = "is the same for all" if same else "is each draft's own best"
    rows = [
        (id, *(fixed(one.taus[id], 2) if id in one.taus else NOT_MEASURED for one in found))
        for id in ids[:ROWS]
    ]
    head = ("prompt", *(f"τ, {one.draft}, γ = {one.gamma}" for one in found))
    note = f"{len(rows)} of {len(ids)} prompts shown; all are in examples.jsonl."
    caption = (
        "Block efficiency of every prompt, forecast on the target's own output; each draft's "
        "prompts in the order of their τ, so that a line above another is better at every rank; γ "
        f"{at}. "
        f"Acceptance rule: {rule}."
    )
    return Drawing("tau-sorted", caption, sorted_taus(found), table(head, rows, note=note))


def _differences(one: Comparison, index: int, rule: str) -> Drawing:
    names = [domain.name for domain in one.domains]
    panels = [
        Dots("difference in α", tuple((domain.alpha,) for domain in one.domains), even=0.0),
        Dots(
            f"difference in τ at γ = {one.gamma}",
            tuple((domain.tau,) for domain in one.domains),
            even=0.0,
        ),
    ]
    caption = (
        f"{one.draft} minus {one.against} by domain, paired, with 95 % intervals. Right of 0 "
        f"{one.draft} is better. Acceptance rule: {rule}."
    )
    rows = [
        (domain.name, str(domain.prompts), estimate(domain.alpha, 3), estimate(domain.tau, 3))
        for domain in one.domains
    ]
    data = table(("domain", "prompts", "α difference", "τ difference"), rows)
    return Drawing(f"difference-{index + 1}", caption, dots(names, [""], panels), data)


def _summary(compared: Sequence[Comparison]) -> Table:
    timed = any(one.temperature is not None for one in compared)
    counted = any(one.counts is not None for one in compared)
    head = ["difference", *(["T"] if timed else ["γ"]), "in α", "in τ"]
    if counted:
        head += ["in measured speed-up", "prompts improved", "worsened", "equal"]
    rows = []
    for one in compared:
        at = brief(one.temperature) if timed else str(one.gamma)
        row = [f"{one.draft} − {one.against}", at, estimate(one.alpha, 3), estimate(one.tau, 3)]
        if counted:
            row += [estimate(one.speedup, 3), *map(str, one.counts or ("–", "–", "–"))]
        rows.append(row)
    return table(head, rows)


def _worse(one: Comparison) -> Table:
    rows = [
        (worse.id, worse.domain or "–", fixed(worse.tau, 2), fixed(worse.tau_against, 2))
        for worse in one.worse[:ROWS]
    ]
    head = ("prompt", "domain", f"τ, {one.draft}", f"τ, {one.against}")
    worsened = one.counts[1] if one.counts else len(one.worse)
    note = f"{len(rows)} of {worsened} listed."
    summary = f"Prompts on which {one.draft} is worse than {one.against}"
    return table(head, rows, note=note, summary=summary)


def _sentence(one: Training) -> str:
    sentence = f"Trained {one.steps} steps on {one.tokens} tokens in {one.duration:.0f} s"
    for curve, name in ((one.held_out_alpha, "held-out α"), (one.alpha, "α on its batches")):
        if len(curve.value) > 1:
            return f"{sentence}; {name} went from {curve.value[0]:.3f} to {curve.value[-1]:.3f}."
    if len(one.loss.value) > 1:
        first, last = one.loss.value[0], one.loss.value[-1]
        return f"{sentence}; the loss went from {first:.3f} to {last:.3f} nats."
    return f"{sentence}."


def _totals(trained: Sequence[Training]) -> Table:
    parts = list(dict.fromkeys(part for one in trained for part in one.parts))
    head = ["run", "steps", "tokens", "seconds", *(f"{part} s" for part in parts)]
    head += ["loss", "α", "held-out α", "held-out τ"]
    rows = []
    for one in trained:
        row = [one.name, str(one.steps), str(one.tokens), fixed(one.duration, 0)]
        row += [fixed(one.parts[part], 0) if part in one.parts else "–" for part in parts]
        curves = (one.loss, one.alpha, one.held_out_alpha, one.held_out_tau)
        row += [fixed(curve.value[-1], 3) if curve.value else "–" for curve in curves]
        rows.append(row)
    note = (
        "Loss and α: the last point of the curves, on the batches trained on; α is that of the "
        "ratio rule. A dash: not measured."
    )
    return table(head, rows, note=note)


def _points(trained: Sequence[Training]) -> Table:
    rows = [
        (one.name, name, brief(step), fixed(seconds, 1), fixed(value, 4))
        for one in trained
        for name, curve in (
            ("loss", one.loss),
            ("α", one.alpha),
            ("held-out α", one.held_out_alpha),
            (
                "held-out τ" if one.gamma is None else f"held-out τ, γ = {one.gamma}",
                one.held_out_tau,
            ),
        )
        for step, seconds, value in zip(curve.step, curve.seconds, curve.value, strict=True)
    ]
    return table(("run", "quantity", "step", "seconds", "value"), rows)
