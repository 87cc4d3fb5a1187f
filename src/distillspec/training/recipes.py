"""Recipes: everything that decides what a training step does, as plain data.

Variation is a value. A divergence, a mixture of data, an optimizer and a schedule are frozen
dataclasses that round-trip through JSON; the paper's five recipes are five values of one type.
Nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from distillspec.errors import UserError
from distillspec.training.checks import in_range, is_number, known, one_of, table
from distillspec.training.optimization import OPTIMIZERS, Adafactor, Optimizer, Schedule

Source: TypeAlias = Literal["fixed", "draft", "target"]
"""Where a step's completions come from: the dataset, the draft being trained, or the target."""
DivergenceName: TypeAlias = Literal[
    "forward_kl", "reverse_kl", "jsd", "total_variation", "acceptance", "path", "cross_entropy"
]
Reduction: TypeAlias = Literal["sequence_mean", "token_mean"]
Precision: TypeAlias = Literal["float32", "bfloat16"]

_DIVERGENCES = (
    "forward_kl",
    "reverse_kl",
    "jsd",
    "total_variation",
    "acceptance",
    "path",
    "cross_entropy",
)
_SPELLINGS = (
    "forward_kl, reverse_kl, jsd:BETA (0 < BETA < 1), total_variation, acceptance, path:GAMMA, "
    "cross_entropy, select:FRACTION or select:FRACTION:DIVERGENCE (0 < FRACTION < 1)"
)


@dataclass(frozen=True)
class Divergence:
    """Which D(p‖q) is minimised at every position, or the hard-label cross-entropy."""

    name: DivergenceName
    """`forward_kl`, `reverse_kl`, `jsd`, `total_variation`: the paper's. `acceptance`: −log of the
    acceptance Σ min(p, q). `path`: the exact expected number of target calls per token, on the
    target's own outputs. `cross_entropy` needs no target."""
    beta: float | None = None
    """The weight of p in JSD's mixture, inside (0, 1); only for `jsd`."""
    gamma: int | None = None
    """Drafted tokens per block, 1 or more; only for `path`."""
    fraction: float | None = None
    """Which share of the tokens is trained on, inside (0, 1): those where a reference draft is
    furthest ahead; None for all tokens, without a reference."""

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if self.name not in _DIVERGENCES:
            raise UserError(f"unknown divergence {self.name!r}; use one of: {_SPELLINGS}")
        if self.name != "jsd" and self.beta is not None:
            raise UserError(f"divergence {self.name} takes no beta, got {self.beta}; leave it out")
        if self.name == "jsd" and not (is_number(self.beta) and 0 < self.beta < 1):
            raise UserError(
                f"jsd needs a beta inside (0, 1), got {self.beta!r}; at its ends it vanishes, so "
                "use forward_kl (the limit at 0) or reverse_kl (the limit at 1) there"
            )
        if self.name != "path" and self.gamma is not None:
            raise UserError(
                f"divergence {self.name} takes no gamma, got {self.gamma}; leave it out"
            )
        if self.name == "path" and not (type(self.gamma) is int and self.gamma >= 1):
            raise UserError(
                f"path needs the gamma it will be served with, a whole number of at least 1, as in "
                f"path:5, got {self.gamma!r}"
            )
        if self.fraction is None:
            return
        if not (is_number(self.fraction) and 0 < self.fraction < 1):
            raise UserError(
                f"select needs a fraction inside (0, 1), got {self.fraction!r}; AdaSPEC's is 0.4"
            )
        if self.name == "path":
            raise UserError("a path weighs every token by itself: leave out select")

    @staticmethod
    def parse(text: str) -> Divergence:
        """Read `forward_kl`, `jsd:0.5`, `path:5`, `select:0.4`, `select:0.4:acceptance`.

        Raises:
            UserError: listing the valid spellings.
        """
        name, colon, value = text.partition(":")
        try:
            if name == "select" and colon:
                fraction, _, inner = value.partition(":")
                base = Divergence.parse(inner or "forward_kl")
                if base.fraction is not None:
                    raise UserError(f"divergence {text!r} selects twice; name one fraction")
                return replace(base, fraction=float(fraction))
            if name == "jsd" and colon:
                return Divergence("jsd", beta=float(value))
            if name == "path" and colon:
                return Divergence("path", gamma=int(value))
        except UserError:
            raise
        except ValueError as error:
            raise UserError(f"cannot read the number in divergence {text!r}: {error}") from error
        if colon or name not in _DIVERGENCES or name in ("jsd", "path"):
            raise UserError(f"unknown divergence {text!r}; use one of: {_SPELLINGS}")
        return Divergence(name)  # type: ignore[arg-type]  # checked against the names above

    def __str__(self) -> str:
        """Return the spelling that `parse` reads."""
        number = self.beta if self.gamma is None else self.gamma
        inner = self.name if number is None else f"{self.name}:{number}"
        return inner if self.fraction is None else f"select:{self.fraction}:{inner}"


@dataclass(frozen=True)
class Mixture:
    """The share of training steps whose completions come from each source."""

    fixed: float = 0.0
    """From the dataset (λ1 of Algorithm A.2)."""
    draft: float = 0.0
    """Sampled from the draft being trained, on-policy ((1 − λ1) λ2)."""
    target: float = 0.0
    """Sampled from the target, afresh every step ((1 − λ1)(1 − λ2))."""

    def __post_init__(self) -> None:
        """Refuse shares that are no probabilities."""
        shares = (self.fixed, self.draft, self.target)
        if not all(is_number(share) and share >= 0 for share in shares) or not math.isclose(
            sum(shares), 1, abs_tol=1e-9
        ):
            raise UserError(
                f"mixture fixed={self.fixed!r}, draft={self.draft!r}, target={self.target!r}: "
                "the shares must be at least 0 and add up to 1"
            )

    def source(self, uniform: float) -> Source:
        """Decide where a step's completions come from, given one uniform number in [0, 1).

        One number suffices for the two coins of Algorithm A.2: u < λ1, else
        (u − λ1) / (1 − λ1) < λ2. A share of 0 is never chosen and a share of 1 always.
        """
        if uniform < self.fixed:
            return "fixed"
        # The target's share, not the draft's, bounds the last interval: 1 − target is exact where
        # target is 0, while fixed + draft may round to just under 1.
        return "draft" if uniform < 1 - self.target else "target"


@dataclass(frozen=True)
class Recipe:
    """What a training run does at every step."""

    divergence: Divergence
    """What is minimised at every position; both models at temperature 1."""
    mixture: Mixture
    """Where the completions come from."""
    optimizer: Optimizer = Adafactor()
    """How a gradient becomes an update."""
    schedule: Schedule = Schedule(5_000, 150_000, 300_000, 0.1)
    """How the learning rate moves; the default is the paper's (Appendix B)."""
    learning_rate: float = 3e-4
    """The rate where the schedule's factor is 1; the paper's."""
    batch_size: int = 32
    """Sequences a step; the paper's."""
    max_new_tokens: int = 64
    """The length limit of sampled completions, in tokens; the paper's for XSum, a task may
    differ. Fixed completions are used whole."""
    target_gamma: int = 0
    """How many tokens a block the draft in training writes ahead of the target in sampled target
    data, which stays exactly the target's; 0 lets the target write alone."""
    clip: float | None = None
    """The largest norm of the gradient; None not to clip (the paper names no clipping)."""
    reduction: Reduction = "sequence_mean"
    """`sequence_mean` is the paper's Eq. 2: the mean over each sequence's tokens, then over the
    batch. `token_mean` weighs every token of the batch alike."""
    precision: Precision = "float32"
    """The arithmetic of the draft's body and head (autocast); divergences are never below
    float32."""
    frozen: tuple[str, ...] = ()
    """Patterns (as in file names) of parameter names that stay as they are, such as
    `*embed_tokens*`."""
    reference: str = ""
    """Where the recipe comes from."""

    def __post_init__(self) -> None:
        """Refuse values that no step could use."""
        in_range("learning_rate", self.learning_rate, 0, math.inf)
        for name, count in (
            ("batch_size", self.batch_size),
            ("max_new_tokens", self.max_new_tokens),
        ):
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise UserError(f"{name} must be a whole number of at least 1, got {count!r}")
        if type(self.target_gamma) is not int or self.target_gamma < 0:
            raise UserError(
                f"target_gamma must be a whole number of at least 0, got {self.target_gamma!r}"
            )
        if self.clip is not None and not (is_number(self.clip) and self.clip > 0):
            raise UserError(f"clip must be above 0, or none not to clip, got {self.clip!r}")
        if self.divergence.name == "path" and self.mixture.draft > 0:
            raise UserError(
                f"path counts the target calls for the target's own outputs, and a share "
                f"{self.mixture.draft} of the data is sampled from the draft: use target data, or "
                "fixed data that the target wrote"
            )
        if not (isinstance(self.frozen, tuple) and all(isinstance(p, str) for p in self.frozen)):
            raise UserError(
                f"frozen must be a list of patterns, as in ['*embed_tokens*'], got {self.frozen!r}"
            )
        one_of("reduction", self.reduction, ("sequence_mean", "token_mean"))
        one_of("precision", self.precision, ("float32", "bfloat16"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold and `from_dict` reads back."""
        return {**asdict(self), "frozen": list(self.frozen)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Recipe:
        """Read what `to_dict` wrote.

        Raises:
            UserError: naming an unknown key with the nearest valid one, or a value that cannot
                be used.
        """
        values = known(Recipe, data, "recipe")
        if isinstance(values.get("divergence"), str):
            values["divergence"] = asdict(Divergence.parse(values["divergence"]))
        parts: dict[str, type] = {
            "divergence": Divergence,
            "mixture": Mixture,
            "schedule": Schedule,
        }
        if "optimizer" in values:
            name = table(values["optimizer"], "optimizer").get("name")
            one_of("optimizer name", name, tuple(OPTIMIZERS))
            parts["optimizer"] = OPTIMIZERS[str(name)]
        for key, part in parts.items():
            if key in values:
                values[key] = part(**known(part, values[key], key))
        if isinstance(values.get("frozen"), list):
            values["frozen"] = tuple(values["frozen"])
        return Recipe(**values)


# Table 1 of the paper. Its lengths and batch are XSum's; `dataclasses.replace` fits them to a task.
SEQKD = Recipe(
    Divergence("cross_entropy"), Mixture(target=1), reference="SeqKD: Kim & Rush 2016; Table 1"
)
"""Hard labels on the target's outputs: black-box, no target logits."""
SUPERVISED_KD = Recipe(
    Divergence("forward_kl"),
    Mixture(fixed=1),
    reference="Supervised KD: Hinton et al. 2015; Table 1",
)
IMITKD = Recipe(
    Divergence("forward_kl"),
    Mixture(fixed=0.5, draft=0.5),
    reference="ImitKD: Lin et al. 2020; Table 1",
)
FDISTILL = Recipe(
    Divergence("total_variation"),
    Mixture(draft=0.5, target=0.5),
    reference="f-Distill: Wen et al. 2023; Table 1",
)
GKD = Recipe(
    Divergence("forward_kl"),
    Mixture(draft=1),
    reference="on-policy GKD: Agarwal et al. 2023; Table 1, which names FKL and JSD",
)

RECIPES: dict[str, Recipe] = {
    "seqkd": SEQKD,
    "supervised_kd": SUPERVISED_KD,
    "imitkd": IMITKD,
    "fdistill": FDISTILL,
    "gkd": GKD,
}
"""The paper's five recipes by the name a user types."""

# Newer than the paper. The data of the first two is their authors': the target's own answers.
ADASPEC = Recipe(
    Divergence("forward_kl", fraction=0.4),
    Mixture(fixed=1),
    reference="AdaSPEC: Hu et al. 2025, arXiv 2510.19779; needs a reference draft",
)
"""Forward KL on the two fifths of the tokens that are easiest to improve."""
ACCEPTANCE = Recipe(
    Divergence("acceptance"),
    Mixture(target=1),
    reference="LK losses: Samarin et al. 2026, arXiv 2602.23881, the −log acceptance alone",
)
"""The acceptance itself."""
PATH = Recipe(
    Divergence("path", gamma=5),
    Mixture(target=1),
    reduction="token_mean",
    reference="ours: the exact expected target calls of math/forecast.py as a loss",
)
"""1 / τ at γ = 5 on the target's outputs, exactly."""

BEYOND: dict[str, Recipe] = {"adaspec": ADASPEC, "acceptance": ACCEPTANCE, "path": PATH}
"""Recipes that are not the paper's, by the name a user types."""


def named(name: str) -> Recipe:
    """Return one of the recipes.

    Raises:
        UserError: listing the valid names.
    """
    recipes = RECIPES | BEYOND
    one_of("recipe", name, tuple(recipes))
    return recipes[name]
