"""The loss of a step against a target that is known from disk, in part."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from distillspec.errors import UserError
from distillspec.math.pairs import acceptance_of
from distillspec.math.partial import Known, lumped
from distillspec.models.protocol import Batch, LanguageModel
from distillspec.training.chunks import Objective, Rows, chunked
from distillspec.training.data import Batches
from distillspec.training.losses import Loss, of_pair
from distillspec.training.offline import OfflineTarget
from distillspec.training.recipes import Divergence, Precision, Recipe


class OfflineLoss(nn.Module):
    """Draft body, draft head and divergence in one `forward`, like `DistillationLoss`."""

    def __init__(
        self,
        draft: LanguageModel,
        divergence: Divergence,
        *,
        precision: Precision = "float32",
        chunk: int | None = None,
    ) -> None:
        """Store what every step shares; the arguments are those of `DistillationLoss`."""
        super().__init__()
        self.module = draft.module
        # In a tuple, because a draft that is itself a module would be registered a second time.
        self._draft = (draft,)
        self._divergence = divergence
        self._autocast = precision == "bfloat16"
        self._rows = Rows.fitting(draft.vocabulary.size, draft.device, chunk)

    def forward(self, batch: Batch, weights: Tensor, known: Tensor, log_z: None = None) -> Loss:
        """Compute the loss of a batch.

        Args:
            batch: B prompts with their completions, N completion tokens in all.
            weights: [N] what each position counts, from `position_weights`.
            known: [N, 2k + 1] of the target at the same positions, from `packed`.
            log_z: None: what is known is normalised already.

        Returns:
            The loss Σ weights · D over the k + 1 events, and Σ over positions of their
            Σ min(p, q), an upper bound of the expected acceptance.
        """
        (draft,) = self._draft

        def score(
            p: Tensor | None, q: Tensor, labels: Tensor, kept: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            if p is None:
                raise ValueError("nothing is known of the target")
            pair = lumped(unpacked(p), q, kept=kept)
            with torch.no_grad():
                acceptance = acceptance_of(pair)
            return of_pair(self._divergence, pair), acceptance

        objective = Objective(
            draft=draft,
            score=score,
            target_head=lambda rows: rows,  # what is known stands for its logits
            target_hidden=known.to(draft.device),
            log_z=log_z,
            labels=torch.cat(batch.completions).to(draft.device),
            weights=weights.cpu(),
            rows=self._rows,
        )
        with torch.autocast(draft.device.type, torch.bfloat16, enabled=self._autocast):
            return Loss(*chunked(objective, draft.hidden(batch)))


def packed(known: Known) -> Tensor:
    """Return [N, 2k + 1]: log-probabilities, tail and ids in one float64 tensor, ids exactly."""
    parts = [known.logprobs.double(), known.tail[..., None].double(), known.ids.double()]
    return torch.cat(parts, -1)


def unpacked(rows: Tensor) -> Known:
    """Return what `packed` took."""
    k = rows.shape[-1] // 2
    return Known(rows[..., k + 1 :].to(torch.int64), rows[..., :k], rows[..., k])


def check_offline(
    offline: OfflineTarget, draft: LanguageModel, batches: Batches, recipe: Recipe
) -> None:
    """Refuse a run that the cache cannot serve, before its first step.

    Raises:
        UserError: naming what does not fit.
    """
    if recipe.mixture.fixed < 1:
        raise UserError(
            f"a cache knows the target on its own completions only, and the mixture wants "
            f"{recipe.mixture.draft:g} on-policy and {recipe.mixture.target:g} target data; give "
            "--fixed 1 (or --recipe supervised_kd), or leave out --cache"
        )
    if recipe.divergence.name == "cross_entropy":
        raise UserError("cross_entropy compares with no target: use sft, which needs no cache")
    if recipe.divergence.gamma is not None or recipe.divergence.fraction is not None:
        raise UserError(
            f"{recipe.divergence} needs the target itself, or all of what it says; leave out "
            "--cache, or give a divergence of single positions"
        )
    stale = offline.origin.differences({"vocabulary": draft.vocabulary.digest})
    if stale:
        raise UserError(f"{offline.folder} does not fit the draft {draft.name}: {stale[0]}")
    lacking = [
        i
        for i, example in enumerate(batches.examples)
        if example.completion is None or not offline.holds(example.prompt, example.completion)
    ]
    if lacking:
        raise UserError(
            f"{len(lacking)} of {len(batches.examples)} examples are not in {offline.folder} (the "
            f"first is number {lacking[0]}): it was made from other prompts or completions, or "
            "with another chat template than was used now; give the file that was written beside "
            "it, and --target where that one's template is not the draft's, or make a new cache"
        )
