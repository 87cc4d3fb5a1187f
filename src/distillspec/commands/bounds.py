"""`bounds`: a draft's acceptance beside the bounds of Pinsker and of the paper's Theorem 4.1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from distillspec.commands.pairs import at_least, load_together, names_of, prompt_ids, rows_of
from distillspec.commands.progress import bar
from distillspec.commands.study_settings import Bounds
from distillspec.commands.tables import interval
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.settings import as_dict
from distillspec.studies.outputs import complete_all, seeded
from distillspec.studies.store import RESULT, Run
from distillspec.studies.theory import bounds, divergences


def run(settings: Bounds) -> dict[str, Any]:
    """Sample from the target and from every draft, and return what `--json` prints."""
    at_least(1, settings, "max_new_tokens", "limit", "batch_size")
    rows = rows_of(settings.prompts, settings.limit, skip_invalid=False, seed=settings.seed)
    names = names_of("--draft", settings.draft)
    target, *drafts = load_together(
        settings.target, list(names.values()), dtype=settings.dtype, device=settings.device
    )
    for draft in drafts:
        if draft.kept is not None:
            raise UserError(
                f"{draft.name} has a trimmed head: KL(p‖q) is infinite where the target may write "
                "what it cannot; give a draft with a whole one"
            )
    store = Run.create(
        settings.out,
        verb="bounds",
        config=as_dict(settings),
        seed=settings.seed,
        device=str(target.device),
    )
    prompts = prompt_ids(target.tokenizer, rows, context=target.context)
    # One space of outputs for all: a draft that ends its own otherwise would write other ones
    ends = target.eos_ids
    answers = _outputs(target, prompts, ends, settings, "target outputs")
    found = []
    for name, draft in zip(names, drafts, strict=True):
        own = _outputs(draft, prompts, ends, settings, f"outputs of {name}")
        sides = [
            divergences(target, draft, prompts, some, batch_size=settings.batch_size)
            for some in (answers, own)
        ]
        found.append({"draft": name, **bounds(sides[0], sides[1], settings.max_new_tokens)})
    result = {"target": settings.target, "prompts": len(prompts), "drafts": found}
    store.write_json(RESULT, result)
    return result


def _outputs(
    model: TransformersModel,
    prompts: Sequence[Tensor],
    ends: Sequence[int],
    settings: Bounds,
    what: str,
) -> list[Tensor]:
    with bar(what) as report:
        outputs = complete_all(
            model,
            prompts,
            sampling=Sampling(),
            max_new_tokens=settings.max_new_tokens,
            batch_size=settings.batch_size,
            generators=seeded(settings.seed, len(prompts)),
            report=report,
            stop=ends,
        )
    return [prompts[0].new_tensor(output.ids) for output in outputs]


def tell(result: dict[str, Any]) -> str:
    """Show a line per draft."""
    lines = [f"{'draft':<32} {'α':<20} {'Pinsker: at least':<20} {'Theorem 4.1':<22} KL, nats"]
    for one in result["drafts"]:
        cells = (interval(one[key]) for key in ("alpha", "pinsker", "theorem", "kl"))
        alpha, pinsker, theorem, kl = cells
        lines.append(f"{one['draft']:<32} {alpha:<20} {pinsker:<20} {theorem:<22} {kl}")
    return "\n".join(lines)
