#!/usr/bin/env python3
"""
palisade-lease run elasticsearch --leases etcd://127.0.0.1:2379 -- python3 examples/python/elasticsearch_worker.py http://127.0.0.1:8080 reports nightly

A worker with Elasticsearch's client: its setting `headers` carries the token, so that every request has it. Makes each line of its
input the text of one document. The client's own retries are off: by default it repeats three times what was answered 502 or 504,
and such a write may still be applied.

Exit codes: 0 all written, 76 the lease is another's, 69 still refused for now when patience ran out, 1 somebody must look.
"""

import os
import sys
import time

from elasticsearch import ApiError, Elasticsearch, TransportError
from elasticsearch.serializer import JsonSerializer

# How many seconds a write may wait in all, while it is refused for now.
PATIENCE = float(os.environ.get("FENCE_PATIENCE", "60"))


def refused(error):
    """The status, if it was the proxy that said no, and not the datastore."""
    return error.meta.status if error.meta.headers.get("x-fence-outcome") == "refused" else None


def write(elasticsearch, **what):
    """Writes once, and again only what was refused for now: it was never sent to the datastore."""
    waited = 0
    while True:
        try:
            return elasticsearch.index(**what)
        except ApiError as error:
            later = error.meta.headers.get("retry-after")
            if refused(error) != 503 or later is None or waited + int(later) > PATIENCE:
                raise
            waited += int(later)
            time.sleep(int(later))


def main():
    url, index, document = sys.argv[1:4]
    token = os.environ["FENCE_TOKEN"]
    # Without a serializer for it the client would say of a refusal no more than that it can't read it.
    problems = {"application/problem+json": JsonSerializer()}
    elasticsearch = Elasticsearch(url, headers={"X-Fence-Token": token}, max_retries=0, serializers=problems)
    print(f"worker: process {os.getpid()} has the lease, token {token}", flush=True)
    for line in sys.stdin:
        try:
            answer = write(elasticsearch, index=index, id=document, document={"text": line.strip()})
            print(f"worker: answered {answer.meta.status}", flush=True)
        except ApiError as error:
            # 412: the lease is another's. The token in X-Fence-Highest is theirs, and never to be sent.
            print(f"{error.body}\nworker: answered {error.meta.status}", flush=True)
            return {412: 76, 503: 69}.get(refused(error), 1)
        except TransportError as error:
            print(f"nobody knows whether this was written: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
