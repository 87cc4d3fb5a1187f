"""Does the engine do what was forecast? Every lossless rule, γ ∈ {1, 3, 5}, T ∈ {0, 1}.

    .venv/bin/python benchmarks/forecast.py [TARGET DRAFT...]

TARGET is a folder, hub name or GGUF file, each DRAFT a folder; by default the demo's target and
the drafts that `make demo` leaves in runs/demo, before and after distillation. Prompts are the
demo's held-out ones. The target's calls are held against their forecast on the engine's own
outputs: equal where the rule leaves nothing to chance, |z| ≤ 4 elsewhere. For the ratio rule (and
greedy, which it is at T = 0) the speed-up on the clock is held against what the cost model and the
exact recursion expect of the outputs that ran; the last column is the forecast from other outputs
of the target, where a dozen prompts differ by chance as well. Exits 1 if a line misses.
About twenty minutes on two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from distillspec.commands.demo import HELD_OUT_SHARE, packaged_target
from distillspec.commands.pairs import names_of, prompt_ids
from distillspec.math.rules import Rule, argmax_draft, exact_match, ratio_test
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models import load_together
from distillspec.studies.answer import GammaRow
from distillspec.studies.measure import Plan, measure
from distillspec.studies.outputs import TargetOutputs, complete_all, seeded
from distillspec.tasks import read_prompts, split

DEMO = ("runs/demo/before", "runs/demo/draft")
RULES = (
    ratio_test(Sampling()),
    ratio_test(GREEDY),
    argmax_draft(Sampling()),
    exact_match(Sampling()),
)
CLOCKED = {"ratio": 12, "greedy": 6}
"""Rules whose speed-up is held against its forecast, and on how many prompts they run: where
drafts are accepted by chance, more are needed."""
GAMMAS = (1, 3, 5)
PROMPTS, TOKENS = 32, 40
COUNTED = 4
"""Prompts that run where the calls alone are compared, not the clock."""
WITHIN = 0.10
"""How far the measured speed-up may be from the forecast, relative to it."""


def main() -> int:
    """Print the table and return the exit code."""
    target_path, *draft_paths = sys.argv[1:] or [packaged_target(), *DEMO]
    if not draft_paths or not all(Path(path).is_dir() for path in draft_paths):
        print("no drafts: run `make demo` first, or give TARGET DRAFT...", file=sys.stderr)
        return 2
    target, *loaded = load_together(target_path, draft_paths)
    drafts = dict(zip(names_of("DRAFT", draft_paths), loaded, strict=True))
    rows = split(read_prompts("stdlib"), HELD_OUT_SHARE).held_out[:PROMPTS]
    prompts = prompt_ids(target.tokenizer, rows)
    missed = 0
    print(
        f"{'rule':<13}{'T':>2} {'draft':<14}{'γ':>2} {'τ expected':>11}{'counted':>8}{'z':>7}"
        f"{'speed-up expected':>19}{'measured':>9}{'ratio':>6}{'of other outputs':>18}"
    )
    for rule in RULES:
        answers = complete_all(
            target,
            prompts,
            sampling=rule.sampling,
            max_new_tokens=TOKENS,
            batch_size=PROMPTS,
            generators=seeded(0, PROMPTS),
            report=_quiet,
        )
        outputs = TargetOutputs.of(prompts, answers, rule.sampling)
        plan = Plan(
            gammas=(1, 2, 3, 4, 5),
            max_new_tokens=TOKENS,
            batch_size=PROMPTS,
            clock_prompts=CLOCKED.get(rule.name, COUNTED),
            repetitions=1,
            seed=1,
            clock_gammas=GAMMAS,
        )
        found = measure(target, drafts, outputs, rule, plan, _quiet)
        for name, finding in found.findings.items():
            for line, good in _lines(rule, name, finding.result["gammas"]):
                missed += not good
                print(line, "" if good else " missed", flush=True)
    print(f"{missed} lines missed" if missed else "every line holds")
    return 1 if missed else 0


def _lines(rule: Rule, draft: str, rows: list[GammaRow]) -> Iterator[tuple[str, bool]]:
    """Yield each γ that ran as a line, and whether it holds."""
    for row in rows:
        if "tau_counted" not in row:
            continue
        z, exact = row["forecast_z"], row["forecast_exact"]
        tau, forecast = row["tau_expected"]["value"], row["speedup_forecast"]["value"]
        expected, measured = row["speedup_expected"]["value"], row["speedup_measured"]["value"]
        counted_as_expected = exact or (z is not None and 0 < abs(z) <= 4)
        near = rule.name not in CLOCKED or abs(measured / expected - 1) < WITHIN
        shown = "exact" if exact else "none" if z is None else f"{z:.2f}"
        yield (
            f"{rule.name:<13}{rule.sampling.temperature:>2g} {draft:<14}{row['gamma']:>2} "
            f"{tau:>11.3f}{row['tau_counted']['value']:>8.3f}{shown:>7}"
            f"{expected:>19.2f}{measured:>9.2f}{measured / expected:>6.2f}{forecast:>18.2f}",
            counted_as_expected and near,
        )


def _quiet(done: int, total: int) -> None:
    """Report nothing: the table is the report."""


if __name__ == "__main__":
    sys.exit(main())
