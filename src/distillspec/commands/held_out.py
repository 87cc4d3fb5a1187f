"""α and τ of a draft in training, as it will be served, on answers it does not train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distillspec.commands.tables import interval
from distillspec.math.rules import Rule
from distillspec.models.protocol import LanguageModel
from distillspec.studies.breakdown import calls
from distillspec.studies.counts import Counts
from distillspec.studies.estimates import Estimate
from distillspec.studies.outputs import TargetOutputs, score
from distillspec.studies.store import Run

GAMMA = 3
"""The γ of τ in metrics.jsonl: the smallest of the paper's."""
ROWS = 32
"""Answers scored at once."""


@dataclass(frozen=True)
class Serving:
    """How a pair will be served."""

    rule: Rule
    """Both samplers, and how drafted tokens are judged."""
    gamma: int = GAMMA
    """Drafted tokens per block."""


@dataclass(frozen=True)
class Evaluation:
    """Counts of one draft on the held-out answers, [prompts] each."""

    step: int
    """Updates made before it."""
    seconds: float
    """Of training before it."""
    gamma: int
    """Of `calls`."""
    lengths: NDArray[np.float64]
    """Tokens of the answers."""
    alpha_sums: NDArray[np.float64]
    """Numerators of α."""
    calls: NDArray[np.float64]
    """Expected target calls at γ, by the exact recursion."""

    @property
    def _counts(self) -> Counts:
        return Counts(self.lengths, self.alpha_sums, self.calls)

    @property
    def alpha(self) -> Estimate:
        """The expected acceptance rate."""
        return self._counts.alpha

    @property
    def tau(self) -> Estimate:
        """The block efficiency at γ."""
        return self._counts.tau

    def alpha_change(self, since: Evaluation) -> Estimate:
        """Estimate the paired difference in α to an earlier evaluation."""
        return self._counts.alpha_above(since._counts)

    def tau_change(self, since: Evaluation) -> Estimate:
        """Estimate the paired difference in τ to an earlier evaluation."""
        return self._counts.tau_above(since._counts)

    def row(self) -> dict[str, Any]:
        """Return it as a row of metrics.jsonl: counts, summed and by prompt."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "evaluation": {
                "alpha_sum": float(self.alpha_sums.sum()),
                "alpha_count": int(self.lengths.sum()),
                "gamma": self.gamma,
                "tokens": int(self.lengths.sum()),
                "calls": float(self.calls.sum()),
                "by_prompt": {
                    "lengths": [int(length) for length in self.lengths],
                    "alpha_sums": self.alpha_sums.tolist(),
                    "calls": self.calls.tolist(),
                },
            },
        }

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> Evaluation:
        """Read what `row` wrote."""
        found = row["evaluation"]
        by_prompt = {key: np.array(v, dtype=np.float64) for key, v in found["by_prompt"].items()}
        return Evaluation(row["step"], row["seconds"], found["gamma"], **by_prompt)


def evaluate(
    target: LanguageModel,
    draft: LanguageModel,
    held: TargetOutputs,
    served: Serving,
    *,
    step: int,
    seconds: float,
) -> Evaluation:
    """Score the draft on held-out answers, as it will be served.

    Raises:
        ValueError: the answers were sampled otherwise than the rule says.
    """
    scores = score(target, draft, held, served.rule, batch_size=ROWS)
    return Evaluation(
        step=step,
        seconds=seconds,
        gamma=served.gamma,
        lengths=scores.lengths.astype(np.float64),
        alpha_sums=scores.alpha_sums,
        calls=calls(scores, served.gamma)[0],
    )


class Judge:
    """Evaluates a draft every so often, remembers the best, and tells when nothing moves.

    The best changes only when τ is above its τ beyond chance: the paired 95 % interval of the
    difference lies above 0. So many small gains add up to one that counts, and of many draws of
    the same τ the luckiest is not taken for progress.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel,
        held: TargetOutputs,
        served: Serving,
        *,
        run: Run,
        every: float,
        patience: int | None,
    ) -> None:
        """Store what every evaluation shares.

        Args:
            target: The model to agree with.
            draft: The model being trained.
            held: The target's answers to held-out prompts.
            served: How the pair will be served.
            run: Where evaluations are logged.
            every: Seconds of training between them.
            patience: Evaluations in a row without progress that are enough; None for no end.
        """
        self.served = served
        self.evaluations: list[Evaluation] = []
        """All so far, in order; the first is of the draft that training began with."""
        self._best = self._idle = 0
        self._models = target, draft, held
        self._run = run
        self._every = every
        self._patience = patience

    @property
    def first(self) -> Evaluation:
        """The draft that training began with."""
        return self.evaluations[0]

    @property
    def best(self) -> Evaluation:
        """The best so far."""
        return self.evaluations[self._best]

    @property
    def last(self) -> Evaluation:
        """The latest."""
        return self.evaluations[-1]

    @property
    def tired(self) -> bool:
        """Whether nothing has moved for as long as patience lasts."""
        return self._patience is not None and self._idle >= self._patience

    @property
    def kept(self) -> Evaluation:
        """The draft to keep: the latest, unless it is below a trained best beyond chance."""
        fell = self.last.tau_change(self.best)["high"] < 0
        return self.best if fell and self.best.step > 0 else self.last

    def due(self, seconds: float) -> bool:
        """Tell whether it is time to evaluate after so many seconds of training."""
        return seconds - self.last.seconds >= self._every

    def look(self, step: int, seconds: float) -> bool:
        """Evaluate the draft as it is now and log it; return whether it is the new best."""
        found = self.measure(step, seconds)
        self._run.log(found.row())
        return self.recall(found)

    def measure(self, step: int, seconds: float) -> Evaluation:
        """Evaluate the draft as it is now."""
        target, draft, held = self._models
        return evaluate(target, draft, held, self.served, step=step, seconds=seconds)

    def recall(self, found: Evaluation) -> bool:
        """Take an evaluation into account; return whether it is the new best."""
        self.evaluations.append(found)
        if len(self.evaluations) == 1:
            return False
        better = found.tau_change(self.best)["low"] > 0
        self._idle = 0 if better else self._idle + 1
        if better:
            self._best = len(self.evaluations) - 1
        return better


def verdict(judge: Judge) -> dict[str, Any]:
    """Say of the draft that is kept what it is worth, and whether training changed it."""
    kept, rule = judge.kept, judge.served.rule
    return {
        "alpha": kept.alpha,
        "tau": kept.tau,
        "gamma": kept.gamma,
        "rule": rule.name,
        "temperature": rule.sampling.temperature,
        "held_out_prompts": len(kept.lengths),
        "alpha_change": kept.alpha_change(judge.first),
        "tau_change": kept.tau_change(judge.first),
        "draft_step": kept.step,
        "evaluations": len(judge.evaluations),
    }


def moved(change: Estimate) -> bool:
    """Tell whether a paired interval leaves out 0."""
    return change["low"] > 0 or change["high"] < 0


def tell(result: Mapping[str, Any]) -> Sequence[str]:
    """Say in lines whether distillation changed anything."""
    alpha, tau = result["alpha_change"], result["tau_change"]
    changed = f"α {interval(alpha, 3, '+')}, τ {interval(tau, 3, '+')}"
    if not (moved(alpha) or moved(tau)):
        verdict = ": no change that these prompts can show"
    elif moved(tau) and tau["high"] < 0:
        verdict = ": worse than the draft it began with"
    else:
        verdict = ""
    lines = [
        f"held-out α {result['alpha']['value']:.3f}, τ {result['tau']['value']:.2f} at "
        f"γ = {result['gamma']} (rule {result['rule']}, T = {result['temperature']:g}); training "
        f"changed {changed}{verdict}"
    ]
    if result["draft_step"] != result["steps"]:
        lines.append(
            f"the draft is that of step {result['draft_step']}: the last was worse beyond chance"
        )
    return lines
