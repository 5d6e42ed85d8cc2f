#!/usr/bin/env python3
"""
palisade-lease run influxdb --leases etcd://127.0.0.1:2379 -- python3 examples/python/influxdb_worker.py 127.0.0.1:8080 nightly

A worker with InfluxDB's client for version 1: its setting `headers` carries the token, so that every request has it. Writes each
line of its input, in InfluxDB's line protocol. The client's own retries are off: it would repeat a write that may still be applied.

Exit codes: 0 all written, 76 the lease is another's, 69 still refused for now when patience ran out, 1 somebody must look.
"""

import os
import sys
import time

import requests
from influxdb import InfluxDBClient
from influxdb.exceptions import InfluxDBClientError, InfluxDBServerError

# How many seconds a write may wait in all, while it is refused for now.
PATIENCE = float(os.environ.get("FENCE_PATIENCE", "60"))


class Refused(Exception):
    """The proxy said no, and not the datastore: nothing was forwarded. The client's own errors don't have the response."""

    def __init__(self, answer):
        super().__init__(answer.text)
        self.status = answer.status_code
        self.later = answer.headers.get("Retry-After")


def raise_refused(answer, **_):
    if answer.headers.get("X-Fence-Outcome") == "refused":
        raise Refused(answer)


def client(address, database, token):
    host, port = address.rsplit(":", 1)
    session = requests.Session()
    session.hooks["response"].append(raise_refused)
    return InfluxDBClient(host, int(port), database=database, headers={"X-Fence-Token": token}, session=session, retries=1)


def patiently(call, *arguments, **named):
    """Calls once, and again only what was refused for now: it was never sent to the datastore."""
    waited = 0
    while True:
        try:
            return call(*arguments, **named)
        except Refused as refusal:
            if refusal.status != 503 or refusal.later is None or waited + int(refusal.later) > PATIENCE:
                raise
            waited += int(refusal.later)
            time.sleep(int(refusal.later))


def main():
    address, database = sys.argv[1:3]
    token = os.environ["FENCE_TOKEN"]
    influxdb = client(address, database, token)
    print(f"worker: process {os.getpid()} has the lease, token {token}", flush=True)
    try:
        patiently(influxdb.create_database, database)
        for line in sys.stdin:
            patiently(influxdb.write_points, [line.strip()], protocol="line")
            print("worker: answered 204", flush=True)
    except Refused as refusal:
        # 412: the lease is another's. The token in X-Fence-Highest is theirs, and never to be sent.
        print(f"{refusal}\nworker: answered {refusal.status}", flush=True)
        return {412: 76, 503: 69}.get(refusal.status, 1)
    except (InfluxDBClientError, InfluxDBServerError, requests.RequestException) as error:
        print(f"somebody must look: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
