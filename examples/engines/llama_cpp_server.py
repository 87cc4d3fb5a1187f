"""Serve a pair of GGUF files by llama.cpp's own server, as `pip install xllamacpp` brings it.

    python llama_cpp_server.py target.gguf --name T --draft draft.gguf --gamma 2 --port 8080

T is what check-export is told as --target; without --draft the target serves alone. It is the line
of an export's serve.md but for the context and the threads, which are as below unless given. Then:
distillspec check-export … --engine llama.cpp --url http://127.0.0.1:8080/v1
"""

from __future__ import annotations

import argparse
import threading

import xllamacpp


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--name", help="what the server calls the target; else the file's name")
    parser.add_argument("--gamma", type=int, default=2)
    kinds = ("probabilistic", "greedy")  # by the rule ratio, and by argmax
    parser.add_argument("--sampling", default=kinds[0], choices=kinds)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = given.target
    params.model_alias = {given.name or given.target}
    params.hostnames, params.port = ["127.0.0.1"], given.port
    params.n_ctx, params.n_parallel = given.context, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.endpoint_metrics = True
    if given.draft:
        draft = params.speculative.draft
        draft.mparams.path = given.draft
        draft.n_max, draft.n_min, draft.p_min = given.gamma, 0, 0.0
        draft.probabilistic = given.sampling == "probabilistic"
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = given.threads
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    server = xllamacpp.Server(params)
    print(f"serving at {server.listening_address}/v1", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
