"""The Llama forward pass without what decoding does not need: the fast path of `CausalBody`.

For a few tokens at a time on a CPU, transformers spends two fifths of a pass outside the matrix
products: masks, repeated key-value heads, type conversions, layers of wrappers. This is the same
arithmetic in the same order, on the model's own modules (so trained weights, biases and adapters
count), for the one architecture whose code it repeats. States differ from transformers' own by
rounding: 1e-6 of their size in float32. A trial at load time compares the logits. On a GPU this
would lose: torch has no fast kernel there for grouped heads under a mask.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaModel,
    LlamaRMSNorm,
)

from distillspec.models.products import product

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of the positions, [B or 1, 1, k, D] each."""


def is_lean(module: PreTrainedModel) -> bool:
    """Tell whether `lean_states` is this very model's forward pass: a Llama on a CPU, no relative.

    A model that was asked for another attention than torch's own keeps it.
    """
    return (
        type(module) is LlamaForCausalLM
        and type(module.base_model) is LlamaModel
        and module.config._attn_implementation == "sdpa"
        and module.device.type == "cpu"
    )


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
    cos, sin = model.rotary_emb(states, position_ids=positions)  # [B or 1, k, D]
    rotation = cos[:, None], sin[:, None]
    bias = _attention_bias(mask, width, k, states)
    for layer in model.layers[: module.config.num_hidden_layers]:
        states = _layer(cast(LlamaDecoderLayer, layer), states, rotation, cache, bias)
    return _normed(states, model.norm)


def _layer(
    layer: LlamaDecoderLayer,
    states: Tensor,
    rotation: Rotation,
    cache: DynamicCache,
    bias: Tensor | None,
) -> Tensor:
    attention, mlp = layer.self_attn, layer.mlp
    shape = (*states.shape[:2], -1, attention.head_dim)
    normed = _normed(states, layer.input_layernorm)
    queries = product(attention.q_proj, normed).view(shape).transpose(1, 2)  # [B, heads, k, D]
    keys = product(attention.k_proj, normed).view(shape).transpose(1, 2)  # [B, groups, k, D]
    values = product(attention.v_proj, normed).view(shape).transpose(1, 2)
    keys, values = cache.update(_rotated(keys, rotation), values, attention.layer_idx)
    mixed = scaled_dot_product_attention(
        _rotated(queries, rotation),
        keys,
        values,
        attn_mask=bias,
        scale=attention.scaling,
        enable_gqa=True,
    )
    states = states + product(attention.o_proj, mixed.transpose(1, 2).flatten(2))
    normed = _normed(states, layer.post_attention_layernorm)
    widened = mlp.act_fn(product(mlp.gate_proj, normed)) * product(mlp.up_proj, normed)
    return states + product(mlp.down_proj, widened)


def _normed(states: Tensor, norm: LlamaRMSNorm) -> Tensor:
    """Divide by the root mean square, in float32 as transformers does, and scale."""
    wide = states.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    inverse = (length.square() / states.shape[-1] + norm.variance_epsilon).rsqrt_()
    scaled: Tensor = norm.weight * (wide * inverse).to(states.dtype)
    return scaled


def _rotated(states: Tensor, rotation: Rotation) -> Tensor:
    """Rotate [B, heads, k, D] pairs of features by their positions' angles."""
    cos, sin = rotation
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat([-second, first], dim=-1) * sin


def _attention_bias(mask: Tensor | None, width: int, k: int, like: Tensor) -> Tensor | None:
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
