"""From logits to the distribution really sampled from, and from a distribution to a token.

Greedy decoding is the one-hot distribution at the argmax, so that one acceptance rule serves
every temperature and no greedy branch exists anywhere else. Nothing here makes a random number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, threshold

from distillspec.errors import UserError
from distillspec.math.precision import at_least_float32


@dataclass(frozen=True)
class Sampling:
    """Sampling settings, applied in transformers' order: temperature, top-k, top-p, min-p."""

    temperature: float = 1.0
    """Divides the logits; 0 is greedy: probability 1 on the first largest logit. Otherwise from
    1e-6 to 1e6, which float32 can divide by."""
    top_k: int | None = None
    """Keep the k largest logits, of equal ones the lowest ids. None keeps all."""
    top_p: float = 1.0
    """Keep the fewest most likely tokens whose probabilities sum to this or more, at least one.
    1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least so many times as likely as the most likely one. 0 keeps all."""

    def __post_init__(self) -> None:
        """Refuse what no distribution follows from; nothing is ever clamped into range."""
        if not (self.temperature == 0 or 1e-6 <= self.temperature <= 1e6):
            raise UserError(
                f"temperature is {self.temperature}: give 0 (greedy) or a number from 1e-6 to 1e6"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(
                f"top_k is {self.top_k}: give 1 or more, or leave it out to keep every token"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}: give a number above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p is {self.min_p}: give a number from 0 (off) to 1")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the distribution that a token is drawn from under these settings.

        Args:
            logits: [..., V], any floating dtype; −inf marks ids that cannot be emitted.

        Returns:
            [..., V] probabilities in float32, or float64 for float64 logits; each row sums to 1
            within rounding.

        Raises:
            ValueError: If the largest logit of a row is not finite (all −inf, +inf or nan).

        Example:
            >>> Sampling(temperature=0.0).probabilities(torch.tensor([1.0, 3.0, 3.0]))
            tensor([0., 1., 0.])
        """
        logits = at_least_float32(logits)
        largest = logits.amax(-1, keepdim=True)
        if not bool(torch.isfinite(largest).all()):
            raise ValueError(
                "a row of logits has no finite largest value (all −inf, +inf or nan): "
                "no distribution follows from it"
            )
        if self.temperature == 0:
            best = logits.argmax(-1, keepdim=True)  # the first of equal ones
            return torch.zeros_like(logits).scatter_(-1, best, 1.0)
        if self.temperature != 1:
            # The largest is subtracted first, so that dividing cannot overflow: rows masked with
            # the smallest float would turn into −inf throughout.
            logits = (logits - largest) / self.temperature
        if self.top_k is not None or self.top_p < 1:
            logits = self._truncated(logits)
        probabilities = logits.softmax(-1)
        if self.min_p == 0:
            return probabilities
        least = self.min_p * probabilities.amax(-1, keepdim=True)
        return (logits + _penalty(probabilities, least)).softmax(-1)

    def _truncated(self, logits: Tensor) -> Tensor:
        """Return [..., V] logits, −inf at what top-k and top-p drop.

        Only the largest values are put in order, and as many as the most spread row needs.
        """
        V = logits.shape[-1]
        width = FIRST_LOOK if self.top_k is None else self.top_k
        of_all = logits.logsumexp(-1, keepdim=True) if self.top_k is None else None
        while True:
            # One more than looked at, to see whether it is equal to the last that stays.
            ordered = logits.topk(min(width + 1, V), -1).values
            candidates = ordered[..., :width]
            total = candidates.logsumexp(-1, keepdim=True) if of_all is None else of_all
            mass = (candidates - total).exp().cumsum(-1, dtype=torch.float64)
            if of_all is None or width >= V or bool((mass[..., -1] >= self.top_p).all()):
                break
            width *= 16
        # A token stays while the mass before it is short of top_p; before the first it is 0.
        inside = mass[..., :-1] < self.top_p if self.top_p < 1 else torch.ones_like(mass[..., 1:])
        count = 1 + inside.sum(-1, keepdim=True).long()  # [..., 1]
        last = candidates.gather(-1, count - 1)
        following = pad(ordered, (0, 1), value=-math.inf).gather(-1, count)
        if not bool((following == last).any()):
            return logits + _penalty(logits, last)
        above = logits > last
        tied = logits == last
        places = count - above.sum(-1, keepdim=True)
        kept = above | (tied & (tied.cumsum(-1, dtype=torch.int32) <= places))
        return logits.masked_fill(~kept, -math.inf)


GREEDY = Sampling(temperature=0.0)
"""The settings that always take the most likely token."""


FIRST_LOOK = 256
"""How many of the largest logits top-p puts in order at first."""


def _penalty(values: Tensor, least: Tensor) -> Tensor:
    """Return 0 at [..., V] values of at least [..., 1] `least` and −inf below.

    By arithmetic, as a mask takes a CPU ten times as long: a difference of numbers that are not
    equal is not 0.
    """
    above = values - least
    smallest = torch.finfo(above.dtype).smallest_normal * torch.finfo(above.dtype).eps
    return threshold(above, -smallest, -math.inf).clamp_(max=0)


BLOCK = 256
"""Ids that `draw` sums up as one before it looks at single ones."""


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one id per row by the inverse of the cumulative distribution.

    In two steps, of which only the first looks at the whole row: a block of `BLOCK` ids by the
    sums of the blocks, then an id by the cumulative sum within that one. An id of probability 0
    is never drawn, for any u in [0, 1), although rows sum to 1 only within rounding and although
    parallel cumulative sums need not be monotone.

    Args:
        probabilities: [..., V], not negative. Rows need not sum to exactly 1.
        uniforms: [...], in [0, 1).

    Returns:
        [...] int64 ids.

    Raises:
        ValueError: If a row has no positive finite total.

    Example:
        >>> draw(torch.tensor([0.0, 0.25, 0.75]), torch.tensor(0.0))
        tensor(1)
    """
    short = -probabilities.shape[-1] % BLOCK
    whole = pad(probabilities, (0, short)) if short else probabilities
    blocks = whole.reshape(*whole.shape[:-1], -1, BLOCK)  # [..., V / BLOCK, BLOCK]
    sums = blocks.sum(-1)
    ends, total = _cumulative(sums)
    lowest, highest = torch.stack(torch.aminmax(total)).tolist()  # one wait for the device
    if not (lowest > 0 and highest < math.inf):  # nan is neither
        raise ValueError("a row of probabilities has no positive finite sum: nothing can be drawn")
    height = torch.minimum(uniforms[..., None] * total, _below(total))
    block = _first_above(ends, height)  # [..., 1]
    end, own = ends.gather(-1, block), sums.gather(-1, block)
    share = ((height - end) / own + 1).clamp(min=0)  # how far the height reaches into the block
    index = block[..., None].expand(*block.shape, BLOCK)
    ends, total = _cumulative(blocks.gather(-2, index).squeeze(-2))
    place = _first_above(ends, torch.minimum(share * total, _below(total)))
    return (block * BLOCK + place).squeeze(-1)


def _cumulative(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sum up [..., n] weights in float64, with 0 in place of the sum where a weight is 0.

    Returns:
        [..., n] sums, and the largest of them, [..., 1].
    """
    sums = weights.cumsum(-1, dtype=torch.float64).masked_fill_(weights <= 0, 0.0)
    return sums, sums.amax(-1, keepdim=True)


def _first_above(sums: Tensor, height: Tensor) -> Tensor:
    """Return the first place of [..., n] sums above a height [..., 1]: [..., 1] int64."""
    # argmax gives the first of equal ones.
    return (sums > height).to(torch.uint8).argmax(-1, keepdim=True)


def _below(x: Tensor) -> Tensor:
    """Return the next smaller number."""
    return torch.nextafter(x, torch.zeros_like(x))
