#!/usr/bin/env python3
"""
palisade-lease run nightly/report --leases etcd://127.0.0.1:2379 -- python3 examples/python/s3_worker.py http://127.0.0.1:8080 bucket key

A worker with boto3: one event hook adds the token to every request before it is signed. PUTs each line of its input as an
object. boto3's own retries are off: a write whose answer did not come may still be applied, and is not to be sent again unseen.

Exit codes: 0 all written, 76 the lease is another's, 69 still refused for now when patience ran out, 1 somebody must look.
"""

import os
import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

# How many seconds a write may wait in all, while it is refused for now.
PATIENCE = float(os.environ.get("FENCE_PATIENCE", "60"))


def fenced_s3(endpoint, token):
    """An S3 client whose every request carries the token."""
    s3 = boto3.client("s3", endpoint_url=endpoint, config=Config(retries={"total_max_attempts": 1}))
    s3.meta.events.register("before-sign.s3", lambda request, **_: request.headers.add_header("X-Fence-Token", token))
    return s3


def write(s3, **what):
    """PUTs once, and again only what was refused for now: it was never sent to the datastore."""
    waited = 0
    while True:
        try:
            return s3.put_object(**what)
        except ClientError as error:
            later = error.response["ResponseMetadata"]["HTTPHeaders"].get("retry-after")
            if refused(error) != 503 or later is None or waited + int(later) > PATIENCE:
                raise
            waited += int(later)
            time.sleep(int(later))


def refused(error):
    """The status, if it was the proxy that said no, and not the datastore."""
    metadata = error.response["ResponseMetadata"]
    return metadata["HTTPStatusCode"] if metadata["HTTPHeaders"].get("x-fence-outcome") == "refused" else None


def show(response):
    metadata = response["ResponseMetadata"]
    print(f"HTTP/1.1 {metadata['HTTPStatusCode']}")
    for name, value in metadata["HTTPHeaders"].items():
        print(f"{name}: {value}")
    print(f"\n{response.get('Error', '')}\nworker: answered {metadata['HTTPStatusCode']}", flush=True)


def main():
    endpoint, bucket, key = sys.argv[1:4]
    token = os.environ["FENCE_TOKEN"]
    s3 = fenced_s3(endpoint, token)
    print(f"worker: process {os.getpid()} has the lease, token {token}", flush=True)
    for line in sys.stdin:
        try:
            show(write(s3, Bucket=bucket, Key=key, Body=line.encode()))
        except ClientError as error:
            show(error.response)
            # 412: the lease is another's. The token in X-Fence-Highest is theirs, and never to be sent.
            return {412: 76, 503: 69}.get(refused(error), 1)
        except BotoCoreError as error:
            print(f"nobody knows whether this was written: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
