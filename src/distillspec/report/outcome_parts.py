"""The page's parts that show an evaluation, a trade-off or a transfer."""

from __future__ import annotations

from distillspec.report import outcome_figures as figures
from distillspec.report.measured_parts import suited, suits_of
from distillspec.report.outcomes import Evaluated, Point, TradeOff, Transfer
from distillspec.report.results import rules
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

QUALITY = 2
"""Digits of a metric; metrics go from 0 to 100."""


def evaluated_content(found: Evaluated) -> Content:
    """Assemble what the page says of an evaluation."""
    verdicts = [Verdict("", sentence, "unmet") for sentence in found.unmet]
    verdicts.append(Verdict(f"{found.task}, rule: {found.rule}", found.verdict))
    if found.suits:
        verdicts.append(Verdict(suited(found.rule), found.suits, "note"))
    drawings = []
    figure = figures.evaluation(found)
    if figure is not None:
        caption = (
            "Quality and seconds per prompt, the target alone and with the draft, on the same "
            f"prompts, with 95 % intervals. Acceptance rule: {found.rule}."
        )
        drawings.append(Drawing("evaluation", caption, figure, _qualities(found)))
    if found.domains:
        drawings.append(_evaluated_domains(found))
    tables = [_facts(found), _qualities(found), _speed(found)]
    if found.same_output:
        tables.append(_same(found))
    intro = f"Below a value: its 95 % bootstrap interval over prompts. Rule: {found.rule}."
    section = Section("Evaluation", intro, tuple(tables))
    return Content(tuple(verdicts), tuple(drawings), (section,))


def tradeoff_content(found: TradeOff) -> Content:
    """Assemble what the page says of a trade-off."""
    at = f"{found.task}, γ = {found.gamma}, temperature {found.temperature:g}"
    verdicts = [Verdict(at, found.verdict)]
    if found.suits:
        verdicts.append(Verdict(suited("lenient"), found.suits, "note"))
    caption = (
        f"{found.metric} against decoding time, γ = {found.gamma}, T = {found.temperature:g}, "
        f"{found.prompts} prompts: one line per draft and lenience function, ε beside its points, "
        "95 % intervals thin. The cross is the target alone, the star the lossless ratio rule, the "
        f"ring the fastest that loses at most {found.max_loss:g} %. Acceptance rule: lenient, "
        "min(1, f(p, ε)/q)."
    )
    data = _points(found)
    section = Section("Trade-off", f"Quality is {found.metric} on {found.task}.", (data,))
    drawing = Drawing("tradeoff", caption, figures.tradeoff(found), data)
    return Content(tuple(verdicts), (drawing,), (section,))


def transfer_content(found: Transfer) -> Content:
    """Assemble what the page says of a transfer."""
    measured = [one for cell in found.cells for one in cell.measured]
    verdicts = [Verdict("", sentence, "unmet") for one in measured for sentence in one.unmet]
    verdicts.append(Verdict(f"rule: {rules(measured)}", found.verdict))
    verdicts += suits_of(measured)
    caption = (
        "Block efficiency (at the baseline's best γ of each task) and speed-up (at each draft's "
        "own best γ; a diamond is what the clock said), per task, drafts side by side, with 95 % "
        f"intervals. Acceptance rule: {rules(measured)}."
    )
    data = _cells(found)
    differences = _differences(found)
    tables = (data, differences) if differences.rows else (data,)
    section = Section("Transfer", f"Acceptance rule: {rules(measured)}.", tables)
    drawing = Drawing("transfer", caption, figures.transfer(found), data)
    return Content(tuple(verdicts), (drawing,), (section,))


def _facts(found: Evaluated) -> Table:
    rows = [(name, "–" if value is None else str(value)) for name, value in found.facts.items()]
    return table(("setting", "value"), rows)


def _qualities(found: Evaluated) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            one.metric,
            estimate(one.target, QUALITY),
            estimate(one.draft, QUALITY),
            estimate(one.difference, QUALITY),
        )
        for one in found.qualities
    ]
    if found.latency is not None:
        timed = found.latency
        rows.append(
            ("seconds per prompt", estimate(timed.target, 3), estimate(timed.draft, 3), "–")
        )
    return table(("quantity", "target alone", "with the draft", "difference, paired"), rows)


def _speed(found: Evaluated) -> Table:
    rows: list[tuple[str, str]] = [
        ("acceptance α, expected, on the target's outputs", estimate(found.alpha, 3)),
        ("block efficiency τ, counted", estimate(found.tau, 2)),
        ("block efficiency τ, forecast", estimate(found.tau_forecast, 2)),
    ]
    note = ""
    if found.latency is None:
        rows.append(("speed-up at batch 1", NOT_MEASURED))
    else:
        rows.append(("speed-up at batch 1, decoding only", estimate(found.latency.speedup, 2)))
        whole = found.latency.end_to_end
        rows.append(("speed-up at batch 1, prefill included", estimate(whole, 2)))
        note = (
            f"Prompts on the clock: {found.latency.prompts}; runs of each, of which the median "
            f"counts: {found.latency.repetitions}."
        )
    rows += [
        (f"throughput: {key.replace('_', ' ')}", "–" if value is None else f"{value:.4g}")
        for key, value in found.throughput.items()
    ]
    return table(("quantity", "value"), rows, note=note)


def _same(found: Evaluated) -> Table:
    rows = [(key.replace("_", " "), str(count)) for key, count in found.same_output.items()]
    note = "Greedy outputs with the draft against the target's own, prompt by prompt."
    return table(("outputs", "prompts"), rows, note=note)


def _evaluated_domains(found: Evaluated) -> Drawing:
    names = [domain.name for domain in found.domains]
    metrics = list(dict.fromkeys(metric for one in found.domains for metric in one.quality))
    panels = [
        figures.Dots(metric, tuple((one.quality.get(metric),) for one in found.domains))
        for metric in metrics
    ]
    panels.append(
        figures.Dots("block efficiency τ, counted", tuple((one.tau,) for one in found.domains))
    )
    rows = [
        (
            one.name,
            str(one.prompts),
            *(estimate(one.quality.get(metric), QUALITY) for metric in metrics),
            estimate(one.tau, 2),
        )
        for one in found.domains
    ]
    caption = (
        "Quality with the draft, and block efficiency, by domain, with 95 % intervals over its "
        f"prompts. Acceptance rule: {found.rule}."
    )
    data = table(("domain", "prompts", *metrics, "τ counted"), rows)
    return Drawing("domains", caption, figures.dots(names, [""], panels), data)


def _points(found: TradeOff) -> Table:
    head = [
        "draft",
        "lenience",
        "ε",
        found.metric,
        "minus the target's",
        "relative time",
        "a token",
    ]
    head += ["τ", "accepted / judged", "picked"]
    rows = [("target alone", "–", "–", estimate(found.quality, QUALITY), *["–"] * 6)]
    rows += [
        (*_point(point), "picked" if index == found.pick else "")
        for index, point in enumerate(found.points)
    ]
    note = (
        "Relative time: decoding seconds over those of the target alone, on the same prompts, in "
        "all and for each token, as lenient outputs may be shorter or longer."
    )
    if found.seconds is not None:
        s = found.seconds
        note += f" It takes {s.value:.3g} s a prompt [{s.low:.3g}, {s.high:.3g}]."
    return table(head, rows, note=note)


def _point(point: Point) -> tuple[str, ...]:
    return (
        point.draft,
        point.lenience,
        "–" if point.epsilon is None else brief(point.epsilon),
        estimate(point.quality, QUALITY),
        estimate(point.difference, QUALITY),
        estimate(point.latency, 3),
        estimate(point.latency_per_token, 3),
        estimate(point.tau, 2),
        fixed(point.acceptance, 3),
    )


def _cells(found: Transfer) -> Table:
    head = ["task", "target", "draft", "rule", "prompts", "acceptance α", "γ", "τ at that γ"]
    head += ["best γ", "speed-up forecast", "speed-up measured"]
    rows = [
        (
            cell.task,
            cell.target,
            one.name,
            one.rule,
            str(one.prompts),
            estimate(one.alpha, 3),
            str(cell.measured[0].best_gamma),
            estimate(one.at(cell.measured[0].best_gamma).tau_forecast, 2),
            str(one.best_gamma),
            estimate(one.best.speedup_forecast, 2),
            estimate(one.best.speedup_measured, 2),
        )
        for cell in found.cells
        for one in cell.measured
    ]
    return table(head, rows)


def _differences(found: Transfer) -> Table:
    head = ["task", "target", "difference", "γ", "in α", "in τ", "in measured speed-up"]
    head += ["prompts improved", "worsened", "equal"]
    rows = [
        (
            cell.task,
            cell.target,
            f"{one.draft} − {one.against}",
            str(one.gamma),
            estimate(one.alpha, 3),
            estimate(one.tau, 3),
            estimate(one.speedup, 3),
            *map(str, one.counts or ("–", "–", "–")),
        )
        for cell in found.cells
        for one in cell.comparisons
    ]
    return table(head, rows, note="Paired over prompts.")
