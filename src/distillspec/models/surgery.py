"""Drafts made from a target: some of its layers, or a narrow fresh model of its family.

Either may have its output head trimmed to some ids; the input embedding stays whole, so the draft
reads every token and merely never proposes a rare one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from distillspec.errors import UserError
from distillspec.models.adapter import TransformersModel
from distillspec.models.quiet import quiet
from distillspec.models.saving import output_layer
from distillspec.models.seeds import globally_seeded
from distillspec.models.seq2seq import Stacks
from distillspec.models.text import Tokenizer
from distillspec.models.wrapping import assemble, config_of


class _Inner(Protocol):
    """How transformers names the input embedding."""

    def get_input_embeddings(self) -> nn.Module: ...


def keep_layers(
    target: TransformersModel,
    layers: Sequence[int],
    *,
    encoder_layers: Sequence[int] | None = None,
    kept: Tensor | None = None,
) -> TransformersModel:
    """Copy a target with only some of its layers.

    Args:
        target: Left as it is.
        layers: Which layers to keep, ascending from 0; an encoder-decoder model's decoder layers.
        encoder_layers: Which encoder layers to keep, None for all: the encoder runs once per
            prompt, so cutting it saves little.
        kept: [K] int64 ids of a trimmed head, None for a whole one; special ids are added.

    Raises:
        UserError: if a layer does not exist, the model is not built of numbered layers, or its
            head is trimmed already.
    """
    _refuse_trimmed(target)
    module = target.module
    if encoder_layers is not None and not module.config.is_encoder_decoder:
        raise UserError(f"{target.name} has no encoder: leave out the encoder layers")
    stacks = _stacks(module, target.name)
    wanted = {"decoder": layers, "encoder": encoder_layers}
    picked = {part: _checked(wanted[part], stack, target.name) for part, stack in stacks.items()}
    draft = _fresh(module, _cut_config(module.config, stacks, picked), seed=0)
    state = _cut_state(module.state_dict(), stacks, picked)
    lacking, surplus = draft.load_state_dict(state, strict=False)
    odd = [*surplus, *(key for key in lacking if key not in draft.all_tied_weights_keys)]
    if odd:
        raise UserError(
            f"cannot keep layers of {target.name} ({type(module).__name__}): its weight {odd[0]} "
            "does not belong to a numbered layer as expected"
        )
    return _finish(target, draft, kept)


def narrow(
    target: TransformersModel,
    *,
    width: int,
    layers: int,
    heads: int,
    generator: torch.Generator,
    kept: Tensor | None = None,
) -> TransformersModel:
    """Make a fresh narrow model of the target's family that knows the target's words.

    Its embeddings are the target's, projected on their first `width` principal directions (the
    truncated SVD), scaled like fresh ones; everything between is random.

    Args:
        target: Left as it is.
        width: Size of the hidden states, a multiple of `heads`.
        layers: Number of layers, in the encoder too if there is one.
        heads: Number of attention heads; keys and values are not grouped.
        generator: Where the random weights come from.
        kept: [K] int64 ids of a trimmed head, None for a whole one; special ids are added.

    Raises:
        UserError: if the sizes do not fit, or the target's head is trimmed already.
    """
    _refuse_trimmed(target)
    config = _narrow_config(target.module.config, target.name, width, layers, heads)
    seed = int(torch.randint(2**31, (), generator=generator))
    draft = _fresh(target.module, config, seed=seed)
    inputs = [cast(_Inner, one).get_input_embeddings() for one in (target.module, draft)]
    _project(inputs[0], inputs[1], width)
    whole = output_layer(draft, target.name)
    if whole.weight is not inputs[1].get_parameter("weight"):
        _project(output_layer(target.module, target.name), whole, width)
    return _finish(target, draft, kept)


def ids_covering(counts: Tensor, share: float) -> int:
    """Return how many of the most frequent ids make up a share of all occurrences.

    Args:
        counts: [V] how often each id occurred, at least one of them.
        share: In (0, 1].
    """
    ranked = counts.to(torch.float64).sort(descending=True).values.cumsum(0)
    needed = share * float(ranked[-1]) * (1 - 1e-12)  # a sum may round to just below the total
    return int((ranked < needed).sum()) + 1


def most_frequent_ids(counts: Tensor, size: int, always: Sequence[int] = ()) -> Tensor:
    """Choose the ids of a trimmed head: those of `always`, then the most frequent ones.

    Args:
        counts: [V] how often each id occurred; of equal ones the smaller id wins.
        size: K, how many ids to choose.
        always: Ids that are chosen in any case.

    Returns:
        [K] int64, ascending.

    Raises:
        ValueError: if `size` does not lie between the number of `always` ids and V.
    """
    fixed = torch.tensor(sorted(set(always)), dtype=torch.int64)
    if not max(1, len(fixed)) <= size <= len(counts):
        raise ValueError(f"size must lie in {max(1, len(fixed))}…{len(counts)}, got {size}")
    ranked = counts.to(torch.float64).index_fill(0, fixed, torch.inf)
    order = ranked.argsort(descending=True, stable=True)
    return order[:size].sort().values


def trim(draft: TransformersModel, kept: Tensor) -> TransformersModel:
    """Copy a draft with a head of some ids only.

    Args:
        draft: With a whole head; left as it is.
        kept: [K] int64 ids; special ids are added.

    Raises:
        UserError: its head is trimmed already, or cannot be.
    """
    _refuse_trimmed(draft)
    return assemble(copy.deepcopy(draft.module), draft.tokenizer, with_special(draft, kept))


def with_special(model: TransformersModel, kept: Tensor) -> Tensor:
    """Return the ids that a head trimmed to `kept` has: special ids too, and none without a string.

    Args:
        model: The model whose head is trimmed, or its target.
        kept: [K] int64 ids.

    Raises:
        UserError: an id has no row in the head.
    """
    tokenizer = model.tokenizer
    rows = output_layer(model.module, model.name).out_features
    limit = min(rows, tokenizer.vocabulary.size)
    if not all(0 <= i < limit for i in kept.tolist()):
        raise UserError(f"kept ids must lie in 0…{limit - 1}")
    wanted = {*kept.tolist(), *model.eos_ids, *tokenizer.special_ids}
    wanted -= set(tokenizer.vocabulary.holes)
    return torch.tensor(sorted(i for i in wanted if i < limit))


@dataclass(frozen=True)
class _Stack:
    """The numbered layers of a decoder or an encoder."""

    prefix: str
    """The name of the list of layers within the model."""
    depth: int
    """How many there are."""


def _stacks(module: PreTrainedModel, name: str) -> dict[str, _Stack]:
    """Find the lists of layers, by part: `decoder`, and `encoder` where there is one."""
    halves = cast(Stacks, module)
    roots = {"decoder": halves.get_decoder()}  # of a model of several parts the one for text
    if module.config.is_encoder_decoder:
        roots["encoder"] = halves.get_encoder()
    found = {}
    for part, root in roots.items():
        lists = [one for one in root.modules() if isinstance(one, nn.ModuleList)]
        if not lists:
            raise UserError(f"{name} ({type(module).__name__}) is not built of numbered layers")
        prefix = next(str(key) for key, one in module.named_modules() if one is lists[0])
        found[part] = _Stack(prefix, len(lists[0]))
    return found


def _checked(layers: Sequence[int] | None, stack: _Stack, name: str) -> list[int]:
    """Return the layers to keep, all of them for None."""
    wanted = list(range(stack.depth) if layers is None else layers)
    if not wanted or wanted != sorted(set(wanted)) or wanted[0] < 0 or wanted[-1] >= stack.depth:
        raise UserError(
            f"{name} has layers 0…{stack.depth - 1}: expected some of them in ascending order, "
            f"got {wanted}"
        )
    return wanted


def _cut_config(
    config: PreTrainedConfig, stacks: dict[str, _Stack], picked: dict[str, list[int]]
) -> PreTrainedConfig:
    """Copy a config for fewer layers; lists with one entry per layer lose the others."""
    cut = copy.deepcopy(config)
    names = {"decoder": ("num_decoder_layers", "decoder_layers"), "encoder": ("encoder_layers",)}
    for part, layers in picked.items():
        own = config_of(cut, part)
        if part == "decoder" or own is not cut:  # where they share it, lists are the decoder's
            for key, values in _per_layer(own, stacks[part].depth).items():
                setattr(own, key, [values[i] for i in layers])
        for key in names[part]:
            if key in vars(own):
                setattr(own, key, len(layers))
        own.num_hidden_layers = len(layers)  # the encoder's, which comes last, where they share it
    return cut


def _per_layer(config: PreTrainedConfig, depth: int) -> dict[str, list[Any]]:
    """Return the settings of a config that are lists with an entry for each of its layers.

    Families name them as they please (`layer_types`, `no_rope_layers`, ...), so they are known by
    their length. Lists of ids, of layers and of classes may have that length by chance.
    """
    return {
        key: value
        for key, value in vars(config).items()
        if isinstance(value, list) and len(value) == depth
        if not key.endswith(("_id", "_ids")) and key not in ("architectures", "mlp_only_layers")
    }


def _cut_state(
    state: dict[str, Tensor], stacks: dict[str, _Stack], picked: dict[str, list[int]]
) -> dict[str, Tensor]:
    """Rename the weights of the kept layers to their new numbers and drop the other layers'."""
    cut = dict(state)
    for part, stack in stacks.items():
        numbered = re.compile(re.escape(stack.prefix) + r"\.(\d+)\.(.*)")
        parts = {key: found for key in state if (found := numbered.fullmatch(key))}
        for key in parts:
            del cut[key]
        for new, old in enumerate(picked[part]):
            # What only the first layer holds (T5's relative bias) goes to the one that is now first
            for source in {0, old} if new == 0 else {old}:
                for key, found in parts.items():
                    name = f"{stack.prefix}.{new}.{found[2]}"
                    if int(found[1]) == source and (source == old or name not in cut):
                        cut[name] = state[key]
    return cut


def _narrow_config(
    config: PreTrainedConfig, name: str, width: int, layers: int, heads: int
) -> PreTrainedConfig:
    """Copy a config for a smaller model, the feed-forward size shrunk in proportion."""
    whole = config_of(config, "decoder").hidden_size
    if min(width, layers, heads) < 1 or width % heads or width > whole:
        raise UserError(
            f"a narrow draft of {name} needs at least one layer and one head and a width that is "
            f"a multiple of the heads and at most {whole}: got width {width}, {layers} layers, "
            f"{heads} heads"
        )
    small = copy.deepcopy(config)
    parts = ("decoder", "encoder") if config.is_encoder_decoder else ("decoder",)
    for own in {id(one): one for one in (config_of(small, part) for part in parts)}.values():
        _shrink(own, width, layers, heads)
    return small


def _shrink(config: PreTrainedConfig, width: int, layers: int, heads: int) -> None:
    """Give a config smaller sizes, in place."""
    for key in ("intermediate_size", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"):
        size = getattr(config, key, None)
        if size is not None:
            setattr(config, key, max(1, size * width // config.hidden_size))
    for key, values in _per_layer(config, config.num_hidden_layers).items():
        setattr(config, key, (values * layers)[:layers])
    kinds = ("num_attention", "num_key_value", "encoder_attention", "decoder_attention")
    depth = ("num_decoder_layers", "encoder_layers", "decoder_layers", "num_hidden_layers")
    sizes = dict.fromkeys([f"{kind}_heads" for kind in kinds], heads) | dict.fromkeys(depth, layers)
    sizes |= dict.fromkeys(("hidden_size", "cross_attention_hidden_size"), width)
    for key, size in (sizes | {"head_dim": width // heads}).items():
        if getattr(config, key, None) is not None:
            setattr(config, key, size)


def _fresh(module: PreTrainedModel, config: PreTrainedConfig, *, seed: int) -> PreTrainedModel:
    """Make a randomly initialised float32 model of the same class, tied where `module` is tied.

    The global generator is left as it was.
    """
    config.dtype = torch.float32
    with globally_seeded(torch.device("cpu"), seed), quiet():
        fresh: PreTrainedModel = type(module)(config)
    nn.Module.float(fresh)
    if module.can_generate():
        fresh.generation_config = copy.deepcopy(module.generation_config)
    # T5 ties its head whatever its config says; only loading two different tables unties them
    for key, source in list(fresh.all_tied_weights_keys.items()):
        if module.get_parameter(key) is not module.get_parameter(source):
            layer, _, part = key.rpartition(".")
            own = nn.Parameter(fresh.get_parameter(key).detach().clone())
            setattr(fresh.get_submodule(layer), part, own)
            del fresh.all_tied_weights_keys[key]
    return fresh


def _project(whole: nn.Module, narrow_one: nn.Module, width: int) -> None:
    """Fill [R, width] weights with the truncated SVD of [R, H] ones, spread as they were."""
    old, new = whole.get_parameter("weight"), narrow_one.get_parameter("weight")
    with torch.no_grad():
        table = old.float().cpu()
        # The leading right singular vectors, from the small Gram matrix; eigenvalues ascend
        directions = torch.linalg.eigh(table.T @ table).eigenvectors[:, -width:].flip(1)
        projected = table @ directions
        new.copy_(projected * (new.std() / projected.std()))


def _refuse_trimmed(target: TransformersModel) -> None:
    if target.kept is not None:
        raise UserError(
            f"{target.name} has a trimmed head already: make drafts from the target itself"
        )


def _finish(
    target: TransformersModel, draft: PreTrainedModel, kept: Tensor | None
) -> TransformersModel:
    """Give a draft the target's tokenizer, type and place, and its trimmed head."""
    nn.Module.to(draft, dtype=target.dtype, device=target.device)
    draft.train(False)
    name = f"a draft of {target.name}"
    tokenizer = Tokenizer(target.tokenizer.hf, target.tokenizer.encoder_decoder, name)
    return assemble(draft, tokenizer, None if kept is None else with_special(target, kept))
