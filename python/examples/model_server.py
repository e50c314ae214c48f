#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A web server whose workers share one model of transformers, which is replaced while they serve.

    python model_server.py [--workers 2]      # serves a tiny model, asks, replaces it, asks again

It needs transformers and gunicorn. To serve a model of yours:

    MODEL=meta-llama/Llama-3.2-1B gunicorn --workers 4 --threads 4 model_server:serve
"""

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import tensorlease
import tensorlease.transformers
import torch
import transformers

NAME = "example/model_server"
if "MODEL" in os.environ:  # in each worker; the first one loads and converts it
    model = tensorlease.transformers.from_pretrained(os.environ["MODEL"], name=NAME, dtype="bfloat16")


def serve(environ, start_response):
    """What gunicorn calls for each request, in each worker, on any of its threads."""
    global model
    mine = model = tensorlease.transformers.newest(model)  # this request has it until its end
    asked = [[int(token) for token in environ["QUERY_STRING"].split(",")]]
    with torch.inference_mode():
        answer = mine.generate(torch.tensor(asked), max_new_tokens=8, do_sample=False, pad_token_id=0)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"worker": os.getpid(), "tokens": answer[0].tolist()}).encode()]


def ask(path):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    connection.request("GET", "/?1,2,3")
    return json.loads(connection.getresponse().read())["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2, vocab_size=300)
    with tempfile.TemporaryDirectory() as folder, tensorlease.connect() as client:
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        path = f"{folder}/socket"
        command = [
            "gunicorn",
            f"--workers={options.workers}",
            f"--bind=unix:{path}",
            "--timeout=300",
            "model_server:serve",
        ]
        more = {
            "MODEL": folder,
            "HOME": folder,
            "PYTHONPATH": os.path.dirname(os.path.abspath(__file__)),
            "OMP_NUM_THREADS": "1",
        }
        server = subprocess.Popen([sys.executable, "-m", *command, "--log-level=error"], env={**os.environ, **more})
        try:
            while not os.path.exists(path):
                assert server.poll() is None, "gunicorn has ended"
                time.sleep(0.05)
            old = ask(path)  # which waits for a worker
            other = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
            tensorlease.transformers.publish(other, NAME, client=client)
            new = ask(path)
        finally:
            server.terminate()
            server.wait()
        client.delete(prefix=NAME)
    print(f"before {old}\nafter  {new}\n{options.workers} workers have served a model that was replaced")


if __name__ == "__main__":
    main()
