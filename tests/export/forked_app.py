"""A server with two forked workers on one port and prometheus_client in multi-process mode, as engines have them.

``GET /work`` counts one request and one launch and says which worker it was; ``GET /metrics`` shows what the program
exports: its own metrics and, as ``argv[1]`` is `inside`, ours. Ends with its standard input.
"""

from __future__ import annotations

import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from prometheus_client import CollectorRegistry, Counter, generate_latest, multiprocess

import tritonprobe
from tritonprobe.ledger import schema
from tritonprobe.runtime import current

REQUESTS = Counter("app_requests", "Requests.")
INSIDE = sys.argv[1] == "inside"
# Where the counting binder would count: a launch of a real kernel takes seconds of compiling.
launches = current().ledger.cell(schema.LAUNCHES, ("k", "all"))


class Worker(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/work":
            REQUESTS.inc()
            launches[0] += 1
            self.answer(str(os.getpid()).encode())
        else:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)
            if INSIDE:
                registry.register(tritonprobe.collector())
            self.answer(generate_latest(registry))

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


server = HTTPServer(("127.0.0.1", 0), Worker)
workers: list[int] = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        server.serve_forever()
    workers.append(pid)
sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
sys.stdout.flush()
sys.stdin.read()
for pid in workers:
    os.kill(pid, signal.SIGKILL)
