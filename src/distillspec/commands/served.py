"""Completions from a server that speaks OpenAI's protocol (vLLM, SGLang, llama.cpp), by URL.

The standard library's client, because a run asks one path of one host with JSON: httpx comes with
some versions of huggingface_hub and not with others, and is no dependency of our own.

Prompts are sent as ids, so that no server renders or tokenizes them a second time. Every sampling
setting is sent, the neutral ones too: vLLM takes those of a model's generation_config otherwise,
and text would follow another law than the one recorded.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from distillspec.errors import UserError
from distillspec.math.sampling import Sampling

T = TypeVar("T")

KEY = "DISTILLSPEC_SERVER_KEY"
"""The environment variable whose value, where it is set, is sent as the bearer token."""
LONGEST_WAIT = 30.0
"""Seconds between two tries at most."""
_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Answers that another try may turn into a good one."""


class PassingError(Exception):
    """What another try may mend; it never leaves this module but as a UserError."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        """Say what went wrong, and how many seconds the server asks to wait, if it does."""
        super().__init__(reason)
        self.wait = wait


class NoSuchPathError(UserError):
    """The server has no such path."""


@dataclass(frozen=True)
class Server:
    """Where to ask, and how patiently."""

    url: str
    """Of the protocol's root, such as http://localhost:8000/v1."""
    timeout: float = 600.0
    """Seconds that one try may take."""
    retries: int = 5
    """Tries beyond the first."""
    first_wait: float = 1.0
    """Seconds before the second try; twice as many before each further one."""

    def __post_init__(self) -> None:
        """Refuse what is no URL of a server."""
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname)
            usable = usable and parts.port != 0  # reading the port checks it
            usable = usable and _plain(self.url)
        except ValueError:
            usable = False
        if not usable:
            raise UserError(
                f"server {self.url!r}: expected a URL such as http://localhost:8000/v1, of ASCII "
                "characters without blanks"
            )

    def ask(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        sleep: Callable[[float], object] = time.sleep,
        seed: int = 0,
    ) -> Any:
        """Ask until there is an answer, waiting longer each time, and return its JSON.

        Args:
            path: From the root, such as "/models"; with `..` for a path beside the root.
            body: What to post; None to get.
            sleep: Waits so many seconds.
            seed: Of the jitter, which keeps many askers from trying again at once.

        Raises:
            NoSuchPathError: the server answered 404 or 405.
            UserError: the request is refused, or no try succeeded.
        """
        return self._patiently(lambda: _json(self._fetch(path, body)), path, sleep, seed)

    def text(self, path: str, *, sleep: Callable[[float], object] = time.sleep) -> str:
        """Get a path's text, as patiently; a path is as for `ask`.

        Raises:
            NoSuchPathError: the server answered 404 or 405.
            UserError: the request is refused, or no try succeeded.
        """
        return self._patiently(
            lambda: self._fetch(path, None).decode("utf-8", "replace"), path, sleep, 0
        )

    def _patiently(
        self, ask: Callable[[], T], path: str, sleep: Callable[[float], object], seed: int
    ) -> T:
        jitter = random.Random(seed)
        for tried in range(self.retries + 1):
            try:
                return ask()
            except PassingError as error:
                if tried == self.retries:
                    tries = "1 try" if tried == 0 else f"{tried + 1} tries"
                    raise UserError(f"{self._at(path)}: no answer in {tries}: {error}") from error
                wait = self.first_wait * 2**tried * (0.5 + jitter.random())
                sleep(min(LONGEST_WAIT, max(wait, error.wait or 0.0)))
        raise AssertionError("unreachable: the last try returns or raises")

    def _fetch(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := _key():
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._at(path), data=data, headers=headers)
        deadline = time.monotonic() + self.timeout
        try:
            with _OPENER.open(request, timeout=self.timeout) as response:
                return _read(response, deadline)
        except urllib.error.HTTPError as error:
            raise self._refusal(path, error) from error
        except (OSError, http.client.HTTPException) as error:  # a timeout is an OSError too
            reason = getattr(error, "reason", error)
            told = "no answer in time" if isinstance(reason, TimeoutError) else str(reason)
            raise PassingError(told or type(reason).__name__) from error

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> Exception:
        try:
            said = _message(error.read(10_000))
        except (OSError, http.client.HTTPException):
            said = ""
        told = f"{error.code} {error.reason}" + (f": {said}" if said else "")
        if error.code in _PASSING:
            return PassingError(told, _seconds(error.headers.get("Retry-After")))
        if error.code in (404, 405):
            return NoSuchPathError(f"{self._at(path)}: answered {told}")
        if error.code in (401, 403):
            return UserError(f"{self._at(path)}: answered {told}; set {KEY} to the server's key")
        return UserError(f"{self._at(path)}: answered {told}")

    def _at(self, path: str) -> str:
        root = self.url.rstrip("/")
        return root.removesuffix("/v1") + path[2:] if path.startswith("..") else root + path


@dataclass(frozen=True)
class Answer:
    """One completion as the server told it."""

    text: str
    """Without special tokens."""
    finish_reason: str
    """`stop` or `length`."""
    ids: tuple[int, ...] | None
    """The sampled ids; None where the server gives none."""
    logprobs: tuple[float, ...] | None
    """Of each id, as the server reports them; None where it gives none."""
    top: tuple[Mapping[int, float], ...] | None
    """The most likely ids and their log-probabilities at each position; None where not given."""


def ask_completion(
    server: Server,
    model: str,
    prompt: Sequence[int],
    *,
    sampling: Sampling,
    max_tokens: int,
    seed: int,
    stop: Sequence[int],
    top: int = 1,
    sleep: Callable[[float], object] = time.sleep,
) -> Answer:
    """Ask for one completion.

    Args:
        server: Whom.
        model: Its name there.
        prompt: Ids.
        sampling: The settings to sample at.
        max_tokens: The length limit in tokens.
        seed: Of the sampling, and of the jitter.
        stop: Ids that end a completion.
        top: How many log-probabilities to ask for at each position.
        sleep: Waits so many seconds.

    Raises:
        UserError: as `Server.ask`; and if the answer is no completion, or another model's.
    """
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed,
        "n": 1,
        "stream": False,
        "stop_token_ids": list(stop),
        "logprobs": top,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
    }
    data = server.ask("/completions", body, sleep=sleep, seed=seed)
    try:
        named = data.get("model", model)
        answer = _answer(data["choices"][0])
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(
            f"{server.url}/completions: answered what is no completion: {str(data)[:120]}"
        ) from error
    if named != model:
        raise UserError(f"{server.url}: {model} was asked and {named} answered")
    if answer.finish_reason not in ("stop", "length"):
        raise UserError(
            f"{server.url}: an answer ended by {answer.finish_reason!r}; expected stop or length"
        )
    return answer


def _answer(choice: Mapping[str, Any]) -> Answer:
    """Read a choice; vLLM tells ids as token_ids, or as tokens of the form token_id:N."""
    logged = choice.get("logprobs") or {}
    tokens = logged.get("tokens") or []
    ids = choice.get("token_ids")
    if ids is None and tokens and all(str(token).startswith("token_id:") for token in tokens):
        ids = [_token_id(token) for token in tokens]
    numbers = logged.get("token_logprobs")
    if ids is None or numbers is None or len(numbers) != len(ids) or None in numbers:
        numbers = None
    top = logged.get("top_logprobs")
    if numbers is None or top is None or len(top) != len(numbers) or not _told_by_id(top):
        top = None
    return Answer(
        text=str(choice["text"]),
        finish_reason=str(choice["finish_reason"]),
        ids=None if ids is None else tuple(int(i) for i in ids),
        logprobs=None if numbers is None else tuple(float(number) for number in numbers),
        top=None
        if top is None
        else tuple({_token_id(key): float(x) for key, x in one.items()} for one in top),
    )


def _key() -> str:
    """Read the server's key; "" where none is set.

    Raises:
        UserError: it cannot be sent. Its text is in no message: http.client would quote it.
    """
    key = os.environ.get(KEY, "").strip()  # a key read from a file ends in a newline
    if key and not _plain(key):
        raise UserError(
            f"{KEY}: expected ASCII characters without blanks; the one that is set has others, "
            "and cannot be sent"
        )
    return key


def _plain(text: str) -> bool:
    """Tell whether HTTP takes a text as it stands: printable ASCII, no blank."""
    return text.isascii() and text.isprintable() and " " not in text


def _told_by_id(top: Sequence[Mapping[str, float]]) -> bool:
    return all(key.startswith("token_id:") for one in top for key in one)


def _token_id(token: str) -> int:
    return int(token.removeprefix("token_id:"))


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        start = content[:80].decode("utf-8", "replace")
        raise PassingError(f"an answer that is not JSON: {start!r}") from error


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read an answer whole; a server that drips is out of time too."""
    parts = []
    while part := response.read1(1 << 16):
        parts.append(part)
        if time.monotonic() > deadline:
            raise TimeoutError
    if response.length:  # read1 does not say that the connection broke in between
        raise http.client.IncompleteRead(b"".join(parts), response.length)
    return b"".join(parts)


def _message(content: bytes) -> str:
    """Find what a refusal says of its reason: its first line."""
    try:
        found: Any = json.loads(content)
        for key in ("error", "message", "detail"):
            found = found.get(key, found) if isinstance(found, Mapping) else found
        text = found if isinstance(found, str) else json.dumps(found)
    except ValueError:
        text = content.decode("utf-8", "replace")
    return (text.strip().splitlines() or [""])[0][:300]


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else float(header)
    except ValueError:  # a date: the own waiting will do
        return None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would turn a post into a get, and carry the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the 3xx is the answer."""
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)
