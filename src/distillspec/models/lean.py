"""The Llama forward pass without what decoding does not need: the fast path of `CausalBody`.

For a few tokens at a time on a CPU, transformers spends two fifths of a pass outside the matrix
products: masks, repeated key-value heads, type conversions, layers of wrappers. This is the same
arithmetic in the same order, on the model's own modules (so trained weights, biases and adapters
count), for the one architecture whose code it repeats. States differ from transformers' own by
rounding: 1e-6 of their size in float32. A trial at load time compares the logits. On a GPU this
would lose: torch has no fast kernel there for grouped heads under a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaModel,
    LlamaRMSNorm,
)

from distillspec.models.products import Multiply, multiplier, product, untouched


def is_lean(module: PreTrainedModel) -> bool:
    """Tell whether `lean_states` is this very model's forward pass: a Llama on a CPU, no relative.

    A model that was asked for another attention than torch's own keeps it, and one with a hook on
    a part that this pass repeats (or a forward pass put in its place) keeps its own pass.
    """
    return (
        type(module) is LlamaForCausalLM
        and type(module.base_model) is LlamaModel
        and module.config._attn_implementation == "sdpa"
        and module.device.type == "cpu"
        and all(map(untouched, _repeated(module.base_model)))
    )


def _repeated(model: LlamaModel) -> Iterator[nn.Module]:
    """Iterate over the parts whose hooks would not run: `lean_states` does not call them."""
    yield model
    yield model.norm
    for layer in model.layers:
        yield layer
        # Attention, MLP and norms, without the time that looking them up by name would take
        yield from (part for part in layer._modules.values() if part is not None)


def lean_states(
    module: PreTrainedModel,
    tokens: Tensor,
    cache: DynamicCache,
    mask: Tensor | None,
    positions: Tensor | None,
) -> Tensor:
    """Feed tokens to a Llama's cache and return their last hidden states.

    Args:
        module: A model that `is_lean`.
        tokens: [B, k] int64.
        cache: Grows by k columns.
        mask: [B, width + k] int64, 1 at real columns; None if all are real.
        positions: [B, k] int64; None if a token's column is its position.

    Returns:
        [B, k, H], what `module.base_model` returns as `last_hidden_state`.
    """
    model = cast(LlamaModel, module.base_model)
    width, k = cache.get_seq_length(), tokens.shape[1]
    if positions is None:
        positions = torch.arange(width, width + k, device=tokens.device)[None]
    states: Tensor = model.embed_tokens(tokens)  # [B, k, H]
    seen = _seen(mask, width, k, states)
    heads_of_a_group = module.config.num_attention_heads // module.config.num_key_value_heads
    shared = _Pass(
        cache,
        rotation=_rotation(*model.rotary_emb(states, position_ids=positions)),
        seen=None if seen is None else seen.repeat(1, 1, heads_of_a_group, 1),
        floor=torch.tensor(module.config.rms_norm_eps**0.5, device=states.device),
        multiply=multiplier(states),
    )
    for layer in islice(model.layers, module.config.num_hidden_layers):
        states = _layer(cast(LlamaDecoderLayer, layer), states, shared)
    return _normed(states, model.norm, shared.floor)


class _Pass(NamedTuple):
    """What all layers of a pass share."""

    cache: DynamicCache
    rotation: tuple[Tensor, Tensor]
    seen: Tensor | None
    """What `_seen` returns, once for each head of a group: [B or 1, 1, heads / groups · k, L]."""
    floor: Tensor
    """√ε of the norms, float32: what a root mean square is kept away from 0 by."""
    multiply: Multiply


def _layer(layer: LlamaDecoderLayer, states: Tensor, shared: _Pass) -> Tensor:
    mlp, multiply = layer.mlp, shared.multiply
    states = states + _attended(
        layer.self_attn, _normed(states, layer.input_layernorm, shared.floor), shared
    )
    normed = _normed(states, layer.post_attention_layernorm, shared.floor)
    gate = mlp.act_fn(product(mlp.gate_proj, normed, multiply))
    widened = gate * product(mlp.up_proj, normed, multiply)
    return states + product(mlp.down_proj, widened, multiply)


def _attended(attention: LlamaAttention, normed: Tensor, shared: _Pass) -> Tensor:
    """Attend from [B, k, H] normed states to the cache and them, which are added to it."""
    multiply, (B, k, _), D = shared.multiply, normed.shape, attention.head_dim
    queries = product(attention.q_proj, normed, multiply)
    keys = product(attention.k_proj, normed, multiply)
    values = product(attention.v_proj, normed, multiply).view(B, k, -1, D).transpose(1, 2)
    # Queries and keys are rotated as one: the number of calls counts here, not the arithmetic.
    both = torch.cat([queries, keys], dim=-1).view(B, k, -1, D).transpose(1, 2)
    groups = values.shape[1]
    rotated = _rotated(both, shared.rotation)
    queries, keys = rotated[:, :-groups], rotated[:, -groups:]  # [B, heads or groups, k, D]
    keys, values = shared.cache.update(keys, values, attention.layer_idx)
    # The heads of a group become rows of one head: torch's kernel would read the keys once for
    # each head instead.
    rows = queries.reshape(B, groups, -1, D)  # [B, groups, heads / groups · k, D]
    mixed = scaled_dot_product_attention(
        rows, keys, values, attn_mask=shared.seen, scale=attention.scaling
    )
    mixed = mixed.view(queries.shape).transpose(1, 2).flatten(2)  # [B, k, heads · D]
    return product(attention.o_proj, mixed, multiply)


def _normed(states: Tensor, norm: LlamaRMSNorm, floor: Tensor) -> Tensor:
    """Divide by √(mean square + ε), in float32 as transformers does, and scale."""
    wide = states.float()
    root = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).mul_(states.shape[-1] ** -0.5)
    scaled: Tensor = norm.weight * wide.div(torch.hypot(root, floor)).to(states.dtype)
    return scaled


def _rotation(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Give [B or 1, k, D] angles a dimension for heads; the first half of the sines is negated."""
    first, second = sin.chunk(2, dim=-1)
    return cos[:, None], torch.cat([-first, second], dim=-1)[:, None]


def _rotated(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate [B, heads, k, D] pairs of features, D / 2 apart, by their positions' angles."""
    cos, sin = rotation
    # Not fused: in bfloat16 each product is rounded, as in transformers.
    return (states * cos).add_(states.roll(states.shape[-1] // 2, dims=-1).mul_(sin))


def _seen(mask: Tensor | None, width: int, k: int, like: Tensor) -> Tensor | None:
    """Return what is added to the scores: −inf at later tokens and padding, [B or 1, 1, k, L].

    Added, not boolean: attention would convert a boolean mask anew in every layer.
    """
    if mask is None and k == 1:
        return None
    columns = torch.arange(width + k, device=like.device)
    seen = (columns <= width + torch.arange(k, device=like.device)[:, None])[None, None]
    if mask is not None:
        seen = seen & mask.bool()[:, None, None]
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(
        ~seen, -torch.inf
    )
