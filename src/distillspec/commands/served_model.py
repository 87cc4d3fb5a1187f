"""Which model a server has, and whether it is the one that was meant; many questions at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from distillspec.commands.served import Answer, NoSuchPathError, Server
from distillspec.errors import UserError
from distillspec.models.text import UNSURE, Tokenizer

PROBE = "It cost 12.50 €, naïvely; 東京 🙂\n\tdef f(x): return x ** 2  # user assistant"
"""A text that few tokenizers cut alike."""

CHAT = "What is speculative decoding?"
"""A message to hold two chat templates against each other by."""

Job = TypeVar("Job")


@dataclass(frozen=True)
class ServedModel:
    """A model of a server."""

    name: str
    """What the server calls it."""
    context: int | None
    """The most tokens of prompt and completion together, where the server says so (vLLM,
    llama.cpp)."""


def find_model(server: Server, wanted: str | None, target: str) -> ServedModel:
    """Find the served model that was meant.

    Args:
        server: Whom to ask.
        wanted: --model; None for the one that is called like the target.
        target: --target, whose tokenizer is used.

    Raises:
        UserError: there is no such model there; the message names those that are.
    """
    try:
        listed = server.ask("/models")
        models = {str(one["id"]): one for one in listed["data"]}
    except NoSuchPathError as error:
        raise UserError(
            f"{error}; is it a server of OpenAI's protocol? Its URL usually ends in /v1"
        ) from error
    except (KeyError, TypeError) as error:
        raise UserError(f"{server.url}/models: answered what is no list of models") from error
    serves = ", ".join(models) or "nothing"
    if wanted is not None and wanted not in models:
        raise UserError(f"{server.url} serves {serves}, not {wanted}; give --model one of these")
    if wanted is None:
        alike = [
            name
            for name, one in models.items()
            if {Path(target).name, target} & {name, Path(name).name, one.get("root")}
        ]
        if len(alike) != 1:
            raise UserError(
                f"{server.url} serves {serves}, not {target}; if that is the same model under "
                "another name, give it as --model"
            )
        wanted = alike[0]
    context = models[wanted].get("max_model_len")  # vLLM
    meta = models[wanted].get("meta")  # llama.cpp
    if context is None and isinstance(meta, dict):
        context = meta.get("n_ctx")
    return ServedModel(wanted, context if isinstance(context, int) else None)


def check_tokenizer(server: Server, model: ServedModel, tokenizer: Tokenizer) -> None:
    """Hold the server's tokenizer against the target's on a probe, where it can be asked (vLLM).

    Raises:
        UserError: they differ.
    """
    if tokenizer.eos_id is None:
        return
    body = {"model": model.name, "prompt": PROBE, "add_special_tokens": False}
    try:
        theirs = server.ask("../tokenize", body)["tokens"]
    except (NoSuchPathError, KeyError, TypeError):
        return  # every answer is checked too
    ours = tokenizer.completion(PROBE)[:-1].tolist()
    if theirs and theirs != ours:
        raise UserError(
            f"{server.url} serves {model.name} with another tokenizer than {tokenizer.name}: of "
            f"{PROBE[:8]!r}… it makes {theirs[:4]}…, and --target makes {ours[:4]}…; give --target "
            "the folder or hub name of the served model"
        )


def renders_otherwise(
    tokenizer: Tokenizer, rendered: Callable[[Sequence[Mapping[str, str]]], Sequence[int]]
) -> bool | None:
    """Hold the ids that a server makes of a chat against the target's.

    Args:
        tokenizer: The target's.
        rendered: Asks the server for the ids of messages.

    Returns:
        None where the target knows no chats, or the server cannot be asked.
    """
    if not tokenizer.chat:
        return None
    try:
        theirs = rendered([{"role": "user", "content": CHAT}])
    except (NoSuchPathError, KeyError, TypeError):
        return None
    return list(theirs) != tokenizer.prompt(CHAT).tolist()


def check_answer(answer: Answer, tokenizer: Tokenizer, ends: Sequence[int], *, where: str) -> None:
    """Check that the ids of an answer stand for its text.

    Blanks at the ends and split characters are left out of it: servers cut them in other ways.

    Raises:
        UserError: they do not, so the served model has another tokenizer.
    """
    if answer.ids is None:
        return
    size = tokenizer.vocabulary.size
    if not all(0 <= i < size for i in answer.ids):
        raise UserError(
            f"{where}: the server answered with id {max(answer.ids)}, and {tokenizer.name} knows "
            f"ids below {size}: it serves another model than --target"
        )
    ended = bool(answer.ids) and answer.ids[-1] in ends
    own = tokenizer.decode(answer.ids[:-1] if ended else answer.ids)
    if _bare(own) != _bare(answer.text):
        raise UserError(
            f"{where}: the server's ids are {own[:60]!r} to {tokenizer.name} and "
            f"{answer.text[:60]!r} to the server: it serves another model than --target"
        )


def _bare(text: str) -> str:
    return text.replace(UNSURE, "").strip()


def ask_all(
    ask: Callable[[Job, Callable[[float], object]], Answer],
    jobs: Sequence[Job],
    concurrency: int,
) -> Iterator[tuple[Job, Answer]]:
    """Ask many questions, so many at once, and yield the answers as they come.

    Args:
        ask: Asks one; its second argument waits some seconds, or less if all is over.
        jobs: What to ask.
        concurrency: Questions at once.

    Raises:
        Exception: what `ask` raised first, after the answers that had come by then. Questions
            under way are dropped then, as they are when the caller stops or is interrupted.
    """
    todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)
    done: queue.SimpleQueue[tuple[Job, Answer | Exception]] = queue.SimpleQueue()
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            try:
                job = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((job, ask(job, over.wait)))
            except Exception as error:
                done.put((job, error))

    for _ in range(min(concurrency, len(jobs))):
        # Daemons, so that Ctrl-C need not wait for a server that may never answer.
        threading.Thread(target=work, daemon=True).start()
    failed: Exception | None = None
    try:
        for _ in jobs:
            if failed is not None and done.empty():
                break
            job, result = done.get()
            if isinstance(result, Exception):
                failed = failed or result
                over.set()
            else:
                yield job, result
    finally:
        over.set()
    if failed is not None:
        raise failed
