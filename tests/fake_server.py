"""A small server of OpenAI's completions protocol around a tiny model, with faults on demand."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from distillspec.decoding import complete
from distillspec.math.sampling import Sampling


class FakeServer(ThreadingHTTPServer):
    """Answers as vLLM does; `faults` holds what happens to the next questions, in their order."""

    daemon_threads = True

    def __init__(self, model, name="served", *, faults=(), tokenizer=None, ids=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = model
        self.name = name
        self.faults = list(faults)
        self.tokenizer = tokenizer or model.tokenizer
        self.ids = ids
        self.top_limit = 20
        self.asked = []
        self.headers = []
        self.busy = self.most_busy = 0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def complete(self, body):
        sampling = Sampling(
            body["temperature"], None if body["top_k"] < 1 else body["top_k"], body["top_p"]
        )
        with self.lock:
            (output,) = complete(
                self.model,
                None,
                [torch.tensor(body["prompt"])],
                gamma=0,
                max_new_tokens=body["max_tokens"],
                sampling=sampling,
                generators=[torch.Generator().manual_seed(body["seed"])],
            )
            log_p = self.model.head(output.states).log_softmax(-1)
        text = self.tokenizer.decode(output.ids)
        choice = {"index": 0, "text": text, "finish_reason": output.finish_reason}
        if self.ids:
            own = log_p.gather(1, torch.tensor(output.ids)[:, None])[:, 0].tolist()
            best = log_p.topk(min(body["logprobs"], self.top_limit), -1)
            top = [
                {
                    **{f"token_id:{i}": x for i, x in zip(ids, xs, strict=True)},
                    f"token_id:{y}": x_of_y,
                }
                for ids, xs, y, x_of_y in zip(
                    best.indices.tolist(), best.values.tolist(), output.ids, own, strict=True
                )
            ]
            choice["logprobs"] = {
                "tokens": [f"token_id:{i}" for i in output.ids],
                "token_logprobs": own,
                "top_logprobs": top,
            }
        return {"object": "text_completion", "model": body["model"], "choices": [choice]}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def log_message(self, *_):
        """Stay silent."""

    counted = False

    def do_GET(self):
        self.server.headers.append(dict(self.headers))
        if self.path == "/v1/models":
            self.give(200, {"data": [{"id": self.server.name, "max_model_len": 128}]})
        else:
            self.give(404, {"detail": "Not Found"})

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            if server.tokenizer is None:
                return self.give(404, {"detail": "Not Found"})
            return self.give(
                200, {"tokens": server.tokenizer.completion(body["prompt"])[:-1].tolist()}
            )
        with server.lock:
            server.asked.append(body)
            server.busy += 1
            self.counted = True
            server.most_busy = max(server.most_busy, server.busy)
            fault = server.faults.pop(0) if server.faults else None
        try:
            self.fail(fault, body) if fault else self.give(200, server.complete(body))
        finally:
            self.leave()

    def leave(self):
        """Count this question as answered, before its answer can bring the next one."""
        with self.server.lock:
            self.server.busy -= self.counted
            self.counted = False

    def fail(self, fault, body):
        name, _, detail = fault.partition(":")
        if name == "status":
            self.give(int(detail), {"error": {"message": f"trouble {detail}\nand more"}})
        elif name == "wait":
            self.give(429, {"message": "busy"}, {"Retry-After": detail})
        elif name == "drop":
            self.connection.close()
        elif name == "slow":
            time.sleep(float(detail))
            self.give(200, self.server.complete(body))
        elif name == "drip":
            self.start(200, 1000)
            for _ in range(20):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        elif name == "cut":
            self.start(200, 1000)
            self.wfile.write(b'{"choices": [')
        elif name == "text":
            self.start(200, len(detail))
            self.wfile.write(detail.encode())
        elif name == "redirect":
            self.send_response(307)
            self.send_header("Location", detail)
            self.end_headers()
        elif name == "change":
            answer = self.server.complete(body)
            key, value = detail.split("=")
            (answer if key in answer else answer["choices"][0])[key] = value
            self.give(200, answer)
        else:
            raise AssertionError(fault)

    def start(self, status, length, headers=None):
        self.leave()
        self.send_response(status)
        for key, value in {"Content-Length": str(length), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()

    def give(self, status, value, headers=None):
        content = json.dumps(value).encode()
        self.start(status, len(content), headers)
        self.wfile.write(content)


@contextmanager
def serving(model, **settings):
    """Serve a model on this machine while the block runs."""
    server = FakeServer(model, **settings)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.daemon = True
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
