#!/usr/bin/env python3
"""
palisade-lease run nightly/report --leases etcd://127.0.0.1:2379 -- python3 examples/python/requests_worker.py http://127.0.0.1:8080/report.txt

A worker with the library requests: the session carries the token, so that every request has it. PUTs each line of its input.

Exit codes: 0 all written, 76 the lease is another's, 69 still refused for now when patience ran out, 1 somebody must look.
"""

import os
import sys
import time

import requests

# How many seconds a write may wait in all, while it is refused for now.
PATIENCE = float(os.environ.get("FENCE_PATIENCE", "60"))

fenced = requests.Session()
fenced.headers["X-Fence-Token"] = os.environ["FENCE_TOKEN"]


def write(url, data):
    """PUTs once, and again only what was refused for now: it was never sent to the datastore."""
    waited = 0
    while True:
        answer = fenced.put(url, data=data, timeout=60)
        if not is_refused(answer) or answer.status_code != 503 or "Retry-After" not in answer.headers:
            return answer
        later = int(answer.headers["Retry-After"])
        waited += later
        if waited > PATIENCE:
            return answer
        time.sleep(later)


def is_refused(answer):
    """Whether the proxy said no, and not the datastore."""
    return answer.headers.get("X-Fence-Outcome") == "refused"


def exit_code(answer):
    """0 to go on. The token in X-Fence-Highest is another worker's, and never to be sent."""
    if answer.ok:
        return 0
    return {412: 76, 503: 69}.get(answer.status_code, 1) if is_refused(answer) else 1


def show(answer):
    print(f"HTTP/1.1 {answer.status_code} {answer.reason}")
    for name, value in answer.headers.items():
        print(f"{name}: {value}")
    print(f"\n{answer.text}\nworker: answered {answer.status_code}", flush=True)


def main():
    print(f"worker: process {os.getpid()} has the lease, token {os.environ['FENCE_TOKEN']}", flush=True)
    for line in sys.stdin:
        try:
            answer = write(sys.argv[1], line.encode())
        except requests.RequestException as error:
            print(f"nobody knows whether this was written: {error}", file=sys.stderr)
            return 1
        show(answer)
        if exit_code(answer) != 0:
            return exit_code(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
