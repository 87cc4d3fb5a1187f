"""The page's parts that show measurements: verdicts, figures and tables, by acceptance rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from distillspec.report import figures
from distillspec.report.outcome_figures import Dots, dots
from distillspec.report.reading import Interval
from distillspec.report.results import STAGES, Measured, rules
from distillspec.report.tables import (
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


def measured_content(measured: Sequence[Measured]) -> Content:
    """Assemble what the page says of measurements; empty where there is none."""
    if not measured:
        return Content()
    return Content(_verdicts(measured), tuple(_drawings(measured)), (_section(measured),))


def suited(rule: str) -> str:
    """Say what a sentence on divergences is about."""
    return f"which divergence suits the rule ({rule})"


def suits_of(measured: Sequence[Measured]) -> list[Verdict]:
    """Say which divergence suits each rule that was measured, once a rule."""
    suits = dict.fromkeys((one.rule, one.suits) for one in measured)
    return [Verdict(suited(rule), sentence, "note") for rule, sentence in suits if sentence]


def _verdicts(measured: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Put a demo's stage after distillation first, and fold away what it started from."""
    staged = all(one.name in STAGES for one in measured)
    found = []
    for one in measured:
        about = f"{one.name}, temperature {one.temperature:g}, rule: {one.rule}"
        aside = staged and one.name != "after"
        found += [Verdict(about, sentence, "unmet") for sentence in one.unmet]
        found.append(Verdict(about, one.verdict, "aside" if aside else "main"))
    return (*found, *suits_of(measured))


def _drawings(measured: Sequence[Measured]) -> list[Drawing]:
    found = []
    bars = figures.speedup_bars(measured)
    if bars is not None:
        caption = (
            "Speed-up on the clock, decoding only, and what was forecast for it. "
            f"Acceptance rule: {rules(measured)}."
        )
        found.append(Drawing("speedup", caption, bars, _clocked(measured)))
    ordered = sorted(measured, key=lambda one: one.temperature)
    for temperature, group in groupby(ordered, key=lambda one: one.temperature):
        same = list(group)
        at = f"at temperature {temperature:g}"
        found += _over_gamma(same, f"t{temperature:g}", at)
        found += _by_place(same, f"t{temperature:g}", at)
        found += _by_domain(same, f"t{temperature:g}", at)
    return found


def _over_gamma(same: Sequence[Measured], suffix: str, at: str) -> list[Drawing]:
    rule = f"Acceptance rule: {rules(same)}."
    batches = any(len(one.batches) > 1 for one in same)
    speedup = (
        f"Forecast speed-up {at} over γ{', by batch size' if batches else ''}, decoding only, with "
        "its 95 % interval over prompts (bands), and what the clock said at batch 1 (markers). "
        f"At 1 the draft neither gains nor loses. {rule}"
    )
    tau = (
        f"Block efficiency {at}: the exact forecast with its 95 % interval over prompts (bands), "
        f"and what the engine counted (markers). {rule}"
    )
    return [
        Drawing(f"speedup-{suffix}", speedup, figures.speedup_by_gamma(same), _batches(same)),
        Drawing(f"tau-{suffix}", tau, figures.tau_by_gamma(same), _every_gamma(same)),
    ]


def _by_place(same: Sequence[Measured], suffix: str, at: str) -> list[Drawing]:
    figure = figures.acceptance_by_place(same)
    if figure is None:
        return []
    gammas = ", ".join(dict.fromkeys(str(one.position_gamma) for one in same if one.positions))
    caption = (
        f"Acceptance {at} by position in the block (γ = {gammas}) and by context length, "
        f"with 95 % intervals. Acceptance rule: {rules(same)}."
        if gammas
        else f"Acceptance {at} by context length. Acceptance rule: {rules(same)}."
    )
    rows = [
        (one.name, f"position {p.position}", brief(p.judged), estimate(p.rate, 3))
        for one in same
        for p in one.positions
    ]
    rows += [
        (one.name, f"context {c.start}–{c.end}", brief(c.tokens), estimate(c.alpha, 3))
        for one in same
        for c in one.contexts
    ]
    head = ("draft", "where", "tokens judged (expected)", "acceptance α")
    return [Drawing(f"acceptance-{suffix}", caption, figure, table(head, rows))]


def _by_domain(same: Sequence[Measured], suffix: str, at: str) -> list[Drawing]:
    names = list(dict.fromkeys(d.name for one in same for d in one.domains))
    if not names:
        return []
    of = [{domain.name: domain for domain in one.domains} for one in same]
    panels = [
        Dots(
            "acceptance α",
            tuple(tuple(o[n].alpha if n in o else None for o in of) for n in names),
        ),
        Dots(
            "block efficiency τ (tokens per target call)",
            tuple(tuple(o[n].tau if n in o else None for o in of) for n in names),
        ),
    ]
    caption = (
        f"Acceptance and block efficiency {at} by domain, with 95 % intervals over its prompts; "
        f"τ at each draft's best γ. Acceptance rule: {rules(same)}."
    )
    rows = [
        (one.name, d.name, str(d.prompts), str(d.tokens), estimate(d.alpha, 3), estimate(d.tau, 2))
        for one in same
        for d in one.domains
    ]
    head = ("draft", "domain", "prompts", "tokens", "acceptance α", "τ")
    figure = dots(names, [one.name for one in same], panels)
    return [Drawing(f"domains-{suffix}", caption, figure, table(head, rows))]


def _section(measured: Sequence[Measured]) -> Section:
    tables = [_best(measured), _costs(measured)]
    if any(one.needed for one in measured):
        tables.append(_needed(measured))
    if any(one.batches for one in measured):
        tables.append(_by_batch(measured))
    tables.append(_every_gamma(measured)._replace(summary="Every γ"))
    intro = (
        "At each pair's best γ by forecast. Below a value: its 95 % bootstrap interval over "
        f"prompts. Acceptance rule: {rules(measured)}."
    )
    return Section("Measurements", intro, tuple(tables))


def _best(measured: Sequence[Measured]) -> Table:
    head = (
        "draft",
        "rule",
        "T",
        "acceptance α",
        "estimator",
        "best γ",
        "τ forecast",
        "τ counted",
        "z",
        "speed-up forecast",
        "speed-up measured",
        "break-even α",
        "headroom",
    )
    rows = [
        (
            one.name,
            one.rule,
            brief(one.temperature),
            estimate(one.alpha, 3),
            one.estimator,
            str(one.best_gamma),
            estimate(one.best.tau_forecast, 2),
            estimate(one.best.tau_counted, 2),
            "–" if one.best.forecast_z is None else fixed(one.best.forecast_z, 2),
            estimate(one.best.speedup_forecast, 2),
            estimate(one.best.speedup_measured, 2),
            _break_even(one.break_even_alpha),
            fixed(one.headroom, 2),
        )
        for one in measured
    ]
    spans = dict.fromkeys(f"{one.tokens} tokens of {one.prompts} prompts" for one in measured)
    note = (
        f"α: acceptance rate, on {' / '.join(spans)}; estimator expected: from both distributions "
        "whole, ratio: from two probabilities a token. τ: tokens per target call. z: the engine's "
        "target calls against the forecast for its own outputs, in standard deviations. Break-even "
        "α: below it this draft cannot pay. Headroom: the speed-up of a perfect draft of this cost."
    )
    return table(head, rows, note=note)


def _costs(measured: Sequence[Measured]) -> Table:
    head = ("draft", "T", "target ms", "draft ms", "overhead ms", "cost c", "α by ratio estimator")
    rows = [
        (
            one.name,
            brief(one.temperature),
            *(fixed(one.cost[key], 2) for key in ("target_ms", "draft_ms", "overhead_ms")),
            fixed(one.cost["c"], 3),
            estimate(one.alpha_ratio, 3),
        )
        for one in measured
    ]
    note = (
        "Milliseconds of a target pass over one token, of a drafted token, and of the rest of a "
        "block, at batch 1; c: a drafted token in target passes."
    )
    return table(head, rows, note=note, summary="Costs, and α by the other estimator")


def _needed(measured: Sequence[Measured]) -> Table:
    rows = [
        (one.name, brief(one.temperature), f"{need.speedup:g}×", _break_even(need.alpha))
        for one in measured
        for need in one.needed
    ]
    note = "By the i.i.d. formula at the γ that suits it best: for a draft that does not exist yet."
    head = ("draft of the cost of", "T", "speed-up wanted", "α needed")
    return table(head, rows, note=note, summary="What α a draft of this cost would need")


def _by_batch(measured: Sequence[Measured]) -> Table:
    head = ("draft", "T", "batch", "cost c", "best γ", "speed-up there", "break-even α", "headroom")
    rows = [
        (
            one.name,
            brief(one.temperature),
            str(batch.size),
            fixed(batch.c, 3),
            str(batch.best_gamma),
            estimate(dict(batch.gammas).get(batch.best_gamma), 2),
            _break_even(batch.break_even_alpha),
            fixed(batch.headroom, 2),
        )
        for one in measured
        for batch in one.batches
    ]
    return table(head, rows, note="Sequences decoded at once; the speed-up is forecast.")


def _every_gamma(measured: Sequence[Measured]) -> Table:
    head = (
        "draft",
        "T",
        "γ",
        "τ forecast",
        "τ if i.i.d.",
        "τ counted",
        "speed-up forecast",
        "speed-up measured",
    )
    rows = [
        (
            one.name,
            brief(one.temperature),
            str(point.gamma),
            estimate(point.tau_forecast, 2),
            fixed(point.tau_iid, 2),
            estimate(point.tau_counted, 2),
            estimate(point.speedup_forecast, 2),
            estimate(point.speedup_measured, 2),
        )
        for one in measured
        for point in one.points
    ]
    return table(head, rows)


def _batches(same: Sequence[Measured]) -> Table:
    if not any(one.batches for one in same):
        return _every_gamma(same)
    rows = [
        (
            one.name,
            str(batch.size),
            str(at.gamma),
            estimate(at.forecast, 2),
            estimate(_clock(one, at.gamma), 2) if batch.size == 1 else "–",
        )
        for one in same
        for batch in one.batches
        for at in batch.gammas
    ]
    return table(("draft", "batch", "γ", "speed-up forecast", "speed-up measured"), rows)


def _clocked(measured: Sequence[Measured]) -> Table:
    head = ("draft", "T", "γ", "speed-up measured", "speed-up forecast")
    rows = [
        (
            one.name,
            brief(one.temperature),
            str(point.gamma),
            estimate(point.speedup_measured, 2),
            estimate(point.speedup_forecast, 2),
        )
        for one in measured
        for point in one.points
        if point.speedup_measured is not None
    ]
    return table(head, rows)


def _clock(one: Measured, gamma: int) -> Interval | None:
    found = (point.speedup_measured for point in one.points if point.gamma == gamma)
    return next(found, None)


def _break_even(alpha: float | None) -> str:
    return "none pays" if alpha is None else f"{alpha:.2f}"
