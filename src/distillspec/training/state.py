"""What a run is at any moment: its optimizer, its step and its seed. Everything else follows."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor, nn

from distillspec.errors import UserError
from distillspec.models.protocol import LanguageModel
from distillspec.models.vocabulary import check_same
from distillspec.models.widths import SIXTEEN_BITS
from distillspec.training.data import Batches
from distillspec.training.identity import fingerprint
from distillspec.training.interrupts import undivided
from distillspec.training.losses import learnable
from distillspec.training.offline import OfflineTarget
from distillspec.training.optimization import Adafactor, Optimizer
from distillspec.training.recipes import Recipe

# torch squares this floor: 1e-15 gives the 1e-30 of Shazeer & Stern (2018). torch's own default,
# float32's rounding unit, would swamp the squared gradients of a mean over thousands of tokens.
_ADAFACTOR_FLOORS = (1e-15, 1e-3)


class State:
    """The moving part of a run; with the draft's weights it is all that a checkpoint needs.

    Coins, rollouts, dropout, the order of the data and the learning rate are functions of `seed`,
    `step` and `seconds`, so there is no generator, no data loader and no scheduler to keep.
    """

    def __init__(
        self,
        draft: LanguageModel,
        batches: Batches,
        recipe: Recipe,
        *,
        seed: int,
        target: LanguageModel | OfflineTarget | None = None,
        reference: LanguageModel | None = None,
    ) -> None:
        """Start at step 0.

        Args:
            draft: The model to train; parameters that take no gradient, or that the recipe
                freezes, are left alone.
            batches: The data, remembered by its digest.
            recipe: What the steps will do.
            seed: From which all randomness of the run follows.
            target: The model to agree with, or what one said, remembered by its fingerprint.
            reference: The draft distilled before, likewise.
        """
        self.recipe = recipe
        self.seed = seed
        self.run = uuid4().hex
        """Which run this is: its checkpoints are told from another's by it."""
        self.step = 0
        """Updates made so far."""
        self.seconds = 0.0
        """Time spent in steps so far; what the caller does between steps does not count."""
        self.parameters = trainable(draft.module, recipe.frozen)
        chosen = {id(parameter) for parameter in self.parameters}
        self.names = [n for n, p in draft.module.named_parameters() if id(p) in chosen]
        """What the draft calls them, whose weights they are wherever these are."""
        self.optimizer = make_optimizer(recipe.optimizer, self.parameters, recipe.learning_rate)
        self._batches = batches
        self._models = {"target": _fingerprint(target), "reference": _fingerprint(reference)}

    def update(self, seconds: float) -> float:
        """Apply the gradients and drop them; `seconds` is the time trained, this step included.

        Ctrl-C waits until the update is made and counted.

        Returns:
            The learning rate that was applied.
        """
        progress = seconds if self.recipe.schedule.unit == "seconds" else self.step + 1
        rate = self.recipe.learning_rate * self.recipe.schedule.factor(progress)
        if isinstance(self.recipe.optimizer, Adafactor):
            rate = min(rate, 1 / math.sqrt(self.step + 1))  # torch would, in silence
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with undivided():
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.step += 1
        return rate

    def moments(self) -> list[dict[str, Tensor]]:
        """Return what the optimizer keeps of each parameter, nothing before its first step."""
        return [dict(self.optimizer.state.get(parameter, {})) for parameter in self.parameters]

    def take_over(
        self,
        parameters: Sequence[nn.Parameter],
        moments: Sequence[Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Train other parameters from now on, one in place of each of the present ones.

        Args:
            parameters: In the order of the present ones.
            moments: What the optimizer shall keep of them; None for what it keeps already.
        """
        kept = self.moments() if moments is None else moments
        self.optimizer.state.clear()
        self.parameters = list(parameters)
        self.optimizer.param_groups[0]["params"] = self.parameters
        for parameter, found in zip(self.parameters, kept, strict=True):
            if found:
                self.optimizer.state[parameter] = dict(found)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the draft's weights, as tensors and plain data."""
        return {
            "run": self.run,
            "step": self.step,
            "seconds": self.seconds,
            "seed": self.seed,
            "recipe": self.recipe.to_dict(),
            "data": self._batches.digest(),
            **self._models,
            "optimizer": self.optimizer.state_dict(),
        }

    def changes(self, saved: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Say what differs from the run that `saved` was taken of: by key, what was and what is.

        The keys are the recipe's, `data`, `target`, `reference` (the draft) and `seed`. Where a
        recipe was read is no part of what it does.
        """
        mine, theirs = self.recipe.to_dict(), saved["recipe"]
        found = {
            key: (theirs.get(key), mine[key])
            for key in mine
            if key != "reference" and mine[key] != theirs.get(key)
        }
        # The digest covers the batch size, which is a key of its own.
        size = theirs.get("batch_size", self._batches.batch_size)
        same_size = Batches(self._batches.examples, size).digest()
        for key, was, now in (
            ("data", saved["data"], same_size),
            *((name, saved[name], now) for name, now in self._models.items()),
            ("seed", saved["seed"], self.seed),
        ):
            if was != now:
                found[key] = (was, now)
        return found

    def load_state_dict(
        self, saved: Mapping[str, Any], *, allow: Collection[str] = ()
    ) -> dict[str, tuple[Any, Any]]:
        """Go on where `saved` was taken.

        Args:
            saved: What `state_dict` returned.
            allow: The keys of `changes` that may differ. What the moments belong to may not:
                `frozen`, and which optimizer it is (its settings may).

        Returns:
            What differs, all of it allowed.

        Raises:
            UserError: naming what differs from the run that was saved.
        """
        changed = self.changes(saved)
        refused = {key: pair for key, pair in changed.items() if key not in allow}
        refused |= {key: changed[key] for key in bound(changed)}
        if refused:
            raise UserError(
                f"the checkpoint belongs to another run ({told(refused)}); give the same settings, "
                "data and models"
                + ("" if bound(refused) else f", or allow the change of {', '.join(refused)}")
            )
        settings = [
            {name: value for name, value in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]
        self.optimizer.load_state_dict(saved["optimizer"])
        for group, own in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(own)  # torch takes the saved settings, whatever the recipe says
        self.run = saved["run"]
        self.step, self.seconds = saved["step"], saved["seconds"]
        return changed


def _fingerprint(model: LanguageModel | OfflineTarget | None) -> str | None:
    if isinstance(model, OfflineTarget):
        return model.origin.fingerprint
    return None if model is None else fingerprint(model.module)


def bound(changed: Mapping[str, tuple[Any, Any]]) -> set[str]:
    """Return the keys of changes that cannot be allowed: the saved moments would mean nothing.

    `lora` is no key of `State.changes`: the shapes of saved weights show it. Verbs tell it sooner.
    """
    found = {"frozen", "lora"} & set(changed)
    was, now = changed.get("optimizer", ({}, {}))
    return found | ({"optimizer"} if was and was["name"] != now["name"] else set())


def told(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Say changes in a few words: of a table only what differs in it, a digest not at all."""
    parts = []
    for key, (was, now) in changed.items():
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            inner = [name for name in {**was, **now} if was.get(name) != now.get(name)]
            parts += [
                f"{key}.{name} was {was.get(name)!r} and is {now.get(name)!r}" for name in inner
            ]
        elif key in ("data", "target", "reference"):
            parts.append(f"other {key}")
        else:
            parts.append(f"{key} was {was!r} and is {now!r}")
    return ", ".join(parts)


def trainable(module: nn.Module, frozen: Collection[str]) -> list[nn.Parameter]:
    """Return the parameters that take a gradient and match no pattern.

    Raises:
        UserError: if a pattern matches no parameter, nothing is left to train, or what is left
            has 16 bits.
    """
    names = [name for name, _ in module.named_parameters()]
    for pattern in frozen:
        if not any(fnmatch(name, pattern) for name in names):
            raise UserError(
                f"frozen pattern {pattern!r} matches no parameter; the names are like "
                f"{', '.join(names[:3])}"
            )
    left = [
        parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and not any(fnmatch(name, pattern) for pattern in frozen)
    ]
    if not left:
        raise UserError(f"nothing is left to train: all {len(names)} parameters are frozen")
    narrow = next((parameter.dtype for parameter in left if parameter.dtype in SIXTEEN_BITS), None)
    if narrow is not None:
        raise UserError(
            f"the draft's weights are {str(narrow).removeprefix('torch.')}, which rounds small "
            "updates away: call draft.module.float() first; precision='bfloat16' in the recipe "
            "still trains in 16-bit arithmetic"
        )
    return left


@contextmanager
def only(module: nn.Module, parameters: Collection[nn.Parameter]) -> Iterator[None]:
    """Let only these parameters of the module take gradients, and undo that afterwards."""
    chosen = {id(parameter) for parameter in parameters}
    others = [p for p in module.parameters() if p.requires_grad and id(p) not in chosen]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


def make_optimizer(
    optimizer: Optimizer, parameters: list[nn.Parameter], rate: float
) -> torch.optim.Optimizer:
    """Build torch's optimizer from its description."""
    if isinstance(optimizer, Adafactor):
        return torch.optim.Adafactor(
            parameters, lr=rate, eps=_ADAFACTOR_FLOORS, weight_decay=optimizer.weight_decay
        )
    return torch.optim.AdamW(
        parameters,
        lr=rate,
        betas=(optimizer.beta1, optimizer.beta2),
        weight_decay=optimizer.weight_decay,
        fused=True,  # one pass over the weights: on a CPU a sixth of the time
    )


def check_run(
    target: LanguageModel | None,
    draft: LanguageModel,
    batches: Batches,
    recipe: Recipe,
    state: State,
) -> None:
    """Refuse a combination that could not train, or would train something else than was asked.

    Raises:
        UserError: what the user can mend.
        ValueError: a state or batches that were made for another recipe.
    """
    if state.recipe != recipe or batches.batch_size != recipe.batch_size:
        raise ValueError("the state and the batches must be made for the recipe they are used with")
    if target is None and (recipe.divergence.name != "cross_entropy" or recipe.mixture.target > 0):
        raise UserError(
            f"{recipe.divergence} with a share {recipe.mixture.target} of target data needs a "
            "target; without one use cross_entropy on fixed data"
        )
    lacking = [i for i, e in enumerate(batches.examples) if e.completion is None]
    if recipe.mixture.fixed > 0 and lacking:
        raise UserError(
            f"training on fixed data needs targets, and {len(lacking)} of {len(batches.examples)} "
            f"prompts have none (the first is number {lacking[0]}): have `distillspec generate` "
            "write the target's answers, or take a recipe without fixed data"
        )
    if recipe.mixture.fixed > 0:
        labels = [e.completion for e in batches.examples if e.completion is not None]
        marks = learnable(draft, labels, recipe.divergence)
        if marks is not None and draft.kept is not None and not bool(marks.any()):
            raise UserError(
                f"none of the {len(marks)} labels of the fixed data is among the {len(draft.kept)} "
                f"ids that the trimmed head of {draft.name} keeps: there is nothing to learn; give "
                "other data, or a draft whose head keeps its ids"
            )
    if target is not None:
        check_same(target.vocabulary, draft.vocabulary, names=(target.name, draft.name))
        theirs = {p.data_ptr() for p in target.module.parameters()}
        if any(p.data_ptr() in theirs for p in state.parameters):
            raise ValueError("the draft shares weights with the target: training would change both")
