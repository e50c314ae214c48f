#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Four web workers share one model: it is in memory once, and is replaced while they serve."""

import http.client
import http.server
import json
import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import tensorlease

PREFIX, REQUESTS = "web_workers_example", int(sys.argv[1]) if len(sys.argv) > 1 else 100


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        layers = self.server.client.get_many(prefix=PREFIX)  # the newest whole model; its leases end with this request
        hidden = np.maximum(np.full(256, float(self.path[1:]), "float32") @ layers["fc1"].numpy(), 0)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([os.getpid(), float((hidden @ layers["fc2"].numpy()).sum())]).encode())

    def log_message(self, *_):
        pass


def work(server):
    with tensorlease.connect() as server.client:
        server.serve_forever()


def main():
    def ask(_):
        connection = http.client.HTTPConnection(*server.server_address, timeout=60)
        connection.request("GET", "/1.5")
        return json.load(connection.getresponse())

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)  # all workers accept from this socket
    processes = [multiprocessing.get_context("fork").Process(target=work, args=[server], daemon=True) for _ in range(4)]
    for process in processes:
        process.start()
    with server, tensorlease.connect() as client, ThreadPoolExecutor(8) as pool:
        for scale in (1, 2):
            model = {"fc1": np.full((256, 4096), scale, "float32"), "fc2": np.full((4096, 10), scale, "float32")}
            client.put_many(model, prefix=PREFIX)  # in one step: no request mixes two models
            pids, results = map(set, zip(*pool.map(ask, range(REQUESTS)), strict=True))
            assert results == {scale**2 * 1.5 * 256 * 4096 * 10}, results
            print(f"model {scale}: {REQUESTS} answers of {len(pids)} workers, all of this model")
        client.delete(prefix=PREFIX)


if __name__ == "__main__":
    main()
