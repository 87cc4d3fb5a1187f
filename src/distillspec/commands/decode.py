"""`decode`: one prompt, streamed, every token coloured by the model that wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from distillspec.commands.gammas import gamma_of
from distillspec.commands.pairs import compiled, load_both, load_model
from distillspec.commands.progress import console
from distillspec.commands.rules import rule_of
from distillspec.commands.settings import Decode
from distillspec.commands.shaping import shape_of
from distillspec.decoding import Block, Role, collect, speculate
from distillspec.math.sampling import Sampling
from distillspec.models.text import Raw, TextStream, Tokenizer
from distillspec.studies.outputs import seeded

STYLES: dict[Role, str] = {
    "accepted": "bold green",
    "correction": "yellow",
    "bonus": "cyan",
    "target": "default",
}


def run(settings: Decode) -> dict[str, Any]:
    """Decode the prompt, streaming its text to the terminal."""
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p, settings.min_p)
    rule = rule_of(settings.rule, sampling, draft_temperature=None, epsilon=settings.epsilon)
    where = {"dtype": settings.dtype, "device": settings.device}
    if settings.draft is None:
        target, draft = load_model(settings.target, **where), None
    else:
        target, draft = load_both(settings.target, settings.draft, **where)
    if settings.compiled:
        target, *rest = compiled(target, *([] if draft is None else [draft]))
        draft = next(iter(rest), None)
    shape = shape_of(settings, target.tokenizer, target.eos_ids)
    prompt = settings.prompt
    ids = target.tokenizer.prompt(Raw(prompt) if settings.raw else prompt)
    gamma = gamma_of(
        settings.gamma, settings.cost, target=target, draft=draft, prompt=ids, rule=rule
    )
    blocks = speculate(
        target,
        draft,
        [ids],
        gamma=gamma,
        max_new_tokens=settings.max_new_tokens,
        sampling=sampling,
        draft_sampling=rule.draft_sampling,
        proposal=rule.proposal,
        lenience=rule.lenience,
        processors=shape.processors,
        stop=shape.stop,
        stop_when=shape.stop_when,
        generators=seeded(settings.seed, 1),
    )
    (output,) = collect(_shown(blocks, target.tokenizer, console()), 1)
    return {
        "text": target.tokenizer.decode(output.ids),
        "tokens": list(output.ids),
        "origin": list(output.origin),
        "target_calls": output.counts.target_calls,
        "drafted": output.counts.drafted,
        "accepted": output.counts.accepted,
        "judged": output.counts.judged,
        "finish_reason": output.finish_reason,
    }


def _shown(blocks: Iterator[Block], tokenizer: Tokenizer, terminal: Console) -> Iterator[Block]:
    """Pass the blocks on, printing each token in its writer's colour once its text is sure."""
    stream = TextStream(tokenizer)
    last: Role = "target"
    for block in blocks:
        for token, last in zip(block.ids[0], block.roles(0), strict=True):
            terminal.print(Text(_harmless(stream.push([token])), style=STYLES[last]), end="")
        yield block
    terminal.print(Text(_harmless(stream.finish()), style=STYLES[last]))
    if terminal.is_terminal:  # without colours there is nothing to explain
        names = [Text(role, style=style) for role, style in STYLES.items()]
        terminal.print(Text(" · ").join(names))


def _harmless(text: str) -> str:
    """Replace control characters, with which a model's text could command the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def tell(result: dict[str, Any]) -> str:
    """Say how the text came about; it has been streamed already."""
    judged = result["judged"]
    accepted = f"{result['accepted']} of {judged} judged draft tokens accepted; " if judged else ""
    return (
        f"{len(result['tokens'])} tokens in {result['target_calls']} target calls; {accepted}"
        f"ended by {result['finish_reason']}"
    )
