#!/usr/bin/env python3
"""
palisade-lease run nightly/report --leases etcd://127.0.0.1:2379 -- python3 examples/python/requests_worker.py http://127.0.0.1:8080/report.txt

A worker with the library requests: the session carries the token, so that every request has it. PUTs each line of its input.

Exit codes: 0 all written, 1 another one has the lease now, or somebody must look.
"""

import os
import sys
import time

import requests

fenced = requests.Session()
fenced.headers["X-Fence-Token"] = os.environ["FENCE_TOKEN"]


def write(url, data):
    """PUTs once, and again only what was refused for now: it was never sent to the datastore."""
    while True:
        answer = fenced.put(url, data=data, timeout=60)
        refused = answer.headers.get("X-Fence-Outcome") == "refused"
        if not (refused and answer.status_code == 503 and "Retry-After" in answer.headers):
            return answer
        time.sleep(int(answer.headers["Retry-After"]))


def show(answer):
    print(f"HTTP/1.1 {answer.status_code} {answer.reason}")
    for name, value in answer.headers.items():
        print(f"{name}: {value}")
    print(f"\n{answer.text}\nworker: answered {answer.status_code}", flush=True)


def main():
    print(f"worker: process {os.getpid()} has the lease, token {os.environ['FENCE_TOKEN']}", flush=True)
    for line in sys.stdin:
        answer = write(sys.argv[1], line.encode())
        show(answer)
        if not answer.ok:
            # 412: the lease is another's. The token in X-Fence-Highest is theirs, and never to be sent. Anything else: stop, too.
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
