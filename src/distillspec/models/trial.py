"""A trial of a model on four tokens: what would otherwise be wrong text becomes an error.

It refuses models that do to their logits something we do not know of, and those that cannot forget
tokens as we have them do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distillspec.errors import UserError
from distillspec.models.heads import Head
from distillspec.models.modes import evaluation_mode
from distillspec.models.seq2seq import Stacks

if TYPE_CHECKING:
    from distillspec.models.adapter import TransformersModel

TOLERANCE = {torch.float64: 0.01, torch.float32: 0.01}
"""How far the trial's logits may be off, relative in the 2-norm; wrong ones are off by about 1."""
HALF_TOLERANCE = 0.25
"""The same in 16 bits, where one rounding may send a token to another expert."""
HEAD_TOLERANCE = 0.02
"""How far the head alone may be off on the model's own states, in any type: a few roundings."""


@torch.no_grad()
def try_out(model: TransformersModel, head: Head, how: str) -> None:
    """Compare logits of four tokens with the model's own uncached ones.

    Those of our head on the model's own states, and those of a cache that was rolled back.

    Args:
        model: Whose sessions are tried.
        head: Its head.
        how: It decodes, for the message.

    Raises:
        UserError: naming the model, if they differ or the model cannot be run like this.
    """
    module = model.module
    try:
        ids = torch.arange(4, device=model.device) * (
            min(model.vocabulary.size, _rows(module)) // 4
        )
        with evaluation_mode(module):
            model.open([ids[:1]])  # nothing to cache: the states' shape is not the model's
            states, theirs = _uncached(model, ids)
            headed, ours = head.rows(states).float(), _logits_with_rollback(model, head, ids)
    except (TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError) as error:
        raise UserError(
            f"{model.name} ({type(module).__name__}) cannot be decoded {how}: "
            f"{type(error).__name__}: {error}"
        ) from error
    off = _distance(headed, theirs)
    if not off <= HEAD_TOLERANCE:
        raise UserError(
            f"{model.name} ({type(module).__name__}) treats its logits in an unknown way (off by "
            f"{off:.2g}): it cannot be used"
        )
    off = _distance(ours, theirs)
    if not off <= TOLERANCE.get(model.dtype, HALF_TOLERANCE):
        raise UserError(
            f"{model.name} ({type(module).__name__}) gives other logits {how} (off by {off:.2g}): "
            "it cannot be used"
        )


def _distance(ours: Tensor, theirs: Tensor) -> float:
    """Return how far logits are off, relative in the 2-norm."""
    return float((ours - theirs).norm() / theirs.norm().clamp_min(1e-30))


def _rows(module: PreTrainedModel) -> int:
    """Return how many ids the model can read."""
    embedding: Callable[[], nn.Module] = module.get_input_embeddings
    return len(embedding().get_parameter("weight"))


def _logits_with_rollback(model: TransformersModel, head: Head, ids: Tensor) -> Tensor:
    """Feed a wrong token, forget it, and return the logits after the right ones."""
    session = model.open([ids[:2]])
    one = torch.ones(1, dtype=torch.int64, device=ids.device)
    wrong = torch.stack([session.pending, ids[:1]], dim=1)
    session.extend(wrong, one * 2)
    session.rollback(one)
    return head.rows(session.extend(ids[None, 2:], one * 2)[0, -1]).float()


def _uncached(model: TransformersModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the transformers model's own states and logits of the same sequence, [H] and [R].

    Of one pass: another might send a token to other experts.
    """
    module = model.module
    encoder_decoder = module.config.is_encoder_decoder
    body = cast(Stacks, module).get_decoder() if encoder_decoder else module.base_model
    states: list[Tensor] = []
    hook = body.register_forward_hook(lambda *given: states.append(given[-1].last_hidden_state))
    try:
        if encoder_decoder:
            start = model.open([ids[:2]]).pending[:, None]
            logits: Tensor = module(
                input_ids=ids[None, :2], decoder_input_ids=torch.cat([start, ids[None, 2:]], dim=1)
            ).logits
        else:
            logits = module(input_ids=ids[None]).logits
    finally:
        hook.remove()
    return states[-1][0, -1], logits[0, -1].float()
