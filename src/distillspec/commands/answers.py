"""Who answers prompts for `generate`: the target in this process, or a server that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from distillspec.commands.served import Answer, Server, ask_completion
from distillspec.commands.served_model import ServedModel, ask_all, check_answer
from distillspec.commands.settings import Generate
from distillspec.commands.shaping import shape_of
from distillspec.errors import UserError
from distillspec.math.partial import Known
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.seeds import row_seed
from distillspec.models.text import Tokenizer
from distillspec.studies.outputs import complete_all, logprobs, seeded
from distillspec.tasks import Row
from distillspec.training.offline import OfflineTarget, describe

GROUP = 8
"""Batches between two times that rows are put on the disk."""
SHARD = 256
"""Answers of a server that make one shard."""
LEAST_TAIL = 1e-7
"""What a server's rounded log-probabilities can tell from 0 as the mass they leave."""

Done = list[tuple[int, dict[str, Any]]]
"""Finished rows with their prompts' numbers."""


class Local:
    """The target, loaded here."""

    def __init__(self, target: TransformersModel, settings: Generate, sampling: Sampling) -> None:
        """Keep what all answers share."""
        self.tokenizer = target.tokenizer
        self.context = target.context
        self._target = target
        self._settings = settings
        self._sampling = sampling
        self._shape = shape_of(settings, target.tokenizer, target.eos_ids)

    def answers(
        self,
        todo: Sequence[int],
        rows: Sequence[Row],
        prompts: Sequence[Tensor],
        cache: OfflineTarget | None,
    ) -> Iterator[Done]:
        """Decode prompts by the engine, groups of like length together.

        A group's part of the cache is written before its rows are given out, from the states
        that the engine has at hand: no second pass.
        """
        settings, generators = self._settings, seeded(self._settings.seed, len(rows))
        order = sorted(todo, key=lambda i: len(prompts[i]))
        size = GROUP * settings.batch_size
        for group in (order[start : start + size] for start in range(0, len(order), size)):
            outputs = complete_all(
                self._target,
                [prompts[i] for i in group],
                sampling=self._sampling,
                processors=self._shape.processors,
                stop=self._shape.stop,
                stop_when=self._shape.stop_when,
                max_new_tokens=settings.max_new_tokens,
                batch_size=settings.batch_size,
                generators=[generators[i] for i in group],
                report=lambda done, total: None,
            )
            if cache is not None:
                cache.add(
                    [prompts[i] for i in group],
                    [torch.tensor(output.ids) for output in outputs],
                    [describe(self._target, output.states, cache.origin.k) for output in outputs],
                )
            done: Done = []
            for i, output in zip(group, outputs, strict=True):
                found: dict[str, Any] = {}
                if settings.logprobs:
                    ids = torch.tensor(output.ids)
                    p = logprobs(self._target, output.states, ids, self._sampling)
                    found = {"target_logprobs": p.tolist()}
                text = self.tokenizer.decode(output.ids)
                row = _row(rows[i], text, output.ids, found, output.finish_reason)
                done.append((i, {**row, "sampled": True}))
            yield done


class Served:
    """A server that has the target."""

    def __init__(
        self,
        server: Server,
        model: ServedModel,
        tokenizer: Tokenizer,
        ends: Sequence[int],
        settings: Generate,
        sampling: Sampling,
    ) -> None:
        """Keep what all questions share.

        Raises:
            UserError: log-probabilities are wanted at settings at which a server's are others.
        """
        if settings.logprobs and sampling not in (Sampling(), Sampling(temperature=0.0)):
            raise UserError(
                "--logprobs from a --server are those of temperature 1 without --top-k and "
                f"--top-p, and it samples at {sampling}; use temperature 1, or 0"
            )
        self.tokenizer = tokenizer
        # A prompt and at least one token more.
        self.context = None if model.context is None else model.context - 1
        self._server = server
        self._model = model
        self._ends = tuple(ends)
        self._settings = settings
        self._sampling = sampling

    def answers(
        self,
        todo: Sequence[int],
        rows: Sequence[Row],
        prompts: Sequence[Tensor],
        cache: OfflineTarget | None,
    ) -> Iterator[Done]:
        """Ask for completions, several at once, and give out each row as it comes."""

        def ask(i: int, sleep: Callable[[float], object]) -> Answer:
            settings, room = self._settings, self._settings.max_new_tokens
            if self.context is not None:
                room = min(room, self.context + 1 - len(prompts[i]))
            return ask_completion(
                self._server,
                self._model.name,
                prompts[i].tolist(),
                sampling=self._sampling,
                max_tokens=room,
                seed=row_seed(settings.seed, i, bits=31),
                stop=self._ends,
                top=1 if cache is None else cache.origin.k,
                sleep=sleep,
            )

        for i, answer in ask_all(ask, todo, self._settings.concurrency):
            check_answer(answer, self.tokenizer, self._ends, where=rows[i].id)
            yield [(i, self._line(rows[i], answer, None if cache is None else cache.origin.k))]

    def _line(self, row: Row, answer: Answer, k: int | None) -> dict[str, Any]:
        """Make a row of an answer.

        Raises:
            UserError: the server left out what was asked for.
        """
        ids = answer.ids
        found: dict[str, Any] = {}
        if ids is None:
            anew = self.tokenizer.completion(answer.text).tolist()
            ids = tuple(anew if answer.finish_reason == "stop" else anew[:-1])
        cut = answer.finish_reason == "stop" and ids[-1:] and ids[-1] not in self._ends
        if cut or not ids:  # the server keeps the stop token to itself
            ids = (*ids, *self._ends[:1])
        if self._settings.logprobs:
            if self._sampling.temperature == 0:
                found["target_logprobs"] = [0.0] * len(ids)  # greedy has no other choice
            elif answer.logprobs is None or len(answer.logprobs) != len(ids):
                raise UserError(
                    f"{row.id}: {self._server.url} gave no log-probability of every token by its "
                    "id; leave out --logprobs, or use a server that does (vLLM)"
                )
            else:
                found["target_logprobs"] = [min(0.0, number) for number in answer.logprobs]
        if k is not None:
            found["top"] = self._top(row, answer, len(ids), k)
        row_of_file = _row(row, answer.text, ids, found, answer.finish_reason)
        return {**row_of_file, "sampled": answer.ids is not None}

    def _top(self, row: Row, answer: Answer, length: int, k: int) -> list[list[list[float]]]:
        if answer.top is None or len(answer.top) != length or min(map(len, answer.top)) < k:
            raise UserError(
                f"{row.id}: {self._server.url} gave fewer than {k} log-probabilities by id at some "
                "position; lower --cache-k (vLLM: 20 unless served with --max-logprobs)"
            )
        return [
            # The sampled id is told beside the k likeliest, where it is not among them.
            [list(pair) for pair in sorted(one.items(), key=lambda pair: -pair[1])[:k]]
            for one in answer.top
        ]


class Shards:
    """What a server said beside its answers, on its way to the cache, a shard of it at a time.

    It comes from rows that are on the disk, and these keep it until all is done: whenever a kill
    comes, the cache is filled from there with what it lacks.
    """

    def __init__(self, cache: OfflineTarget, prompts: Sequence[Tensor]) -> None:
        """Begin with nothing in memory."""
        self._cache = cache
        self._prompts = prompts
        self._waiting: list[tuple[Tensor, Tensor, Known]] = []

    def keep(self, number: int, row: dict[str, Any]) -> dict[str, Any]:
        """Take what a row has for the cache, and return the row without it.

        A row of the target that is loaded here has nothing: it is in the cache already.

        Raises:
            UserError: the shard cannot be written.
        """
        if "top" not in row:
            return row
        ids = torch.tensor(row["target_ids"])
        if not self._cache.holds(self._prompts[number], ids):
            self._waiting.append((self._prompts[number], ids, _known(row["top"])))
            if len(self._waiting) >= SHARD:
                self._write()
        return {key: value for key, value in row.items() if key != "top"}

    def finish(self, answers: Sequence[dict[str, Any]], out: Path) -> None:
        """Write the last shard, and check that the cache has all answers.

        Raises:
            UserError: the shard cannot be written; or the cache lacks answers of an earlier run
                with a target that was loaded, as after it was removed in between.
        """
        self._write()
        lacking = sum(
            not self._cache.holds(prompt, torch.tensor(answer["target_ids"]))
            for prompt, answer in zip(self._prompts, answers, strict=True)
        )
        if lacking:
            raise UserError(
                f"{self._cache.folder} lacks {lacking} of {len(answers)} answers that {out}.part "
                "has from an earlier run; remove that file to have them made again"
            )

    def _write(self) -> None:
        self._cache.add(
            [prompt for prompt, _, _ in self._waiting],
            [completion for _, completion, _ in self._waiting],
            [known for _, _, known in self._waiting],
        )
        self._waiting = []


def _known(top: Sequence[Sequence[Sequence[float]]]) -> Known:
    """Make what is known of one answer's positions of [length, k] pairs (id, log-probability)."""
    pairs = torch.tensor(top, dtype=torch.float64)  # [L, k, 2]
    rest = 1 - pairs[..., 1].exp().sum(-1)
    return Known(
        pairs[..., 0].to(torch.int64), pairs[..., 1], rest.clamp(min=LEAST_TAIL, max=1).log()
    )


def _row(
    row: Row, text: str, ids: Sequence[int], found: dict[str, Any], finish_reason: str
) -> dict[str, Any]:
    """Make one line of the file."""
    prompt = {"prompt": row.prompt} if isinstance(row.prompt, str) else {"messages": row.prompt}
    domain = {} if row.domain is None else {"domain": row.domain}
    return {
        "id": row.id,
        **domain,
        **prompt,
        "target": text,
        "target_ids": list(ids),
        **found,
        "finish_reason": finish_reason,
    }
