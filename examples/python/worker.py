#!/usr/bin/env python3
"""
python3 examples/python/worker.py --etcd http://127.0.0.1:2379 --lease nightly/report http://127.0.0.1:8080/report.txt

A worker without palisade-lease, in Python's standard library alone: it takes the lease itself, through etcd's JSON
gateway, keeps it, and PUTs each line of its input to a URL with the token of its lease. Copy the class Lease and the
function write() into your own program.

The keys are palisade-lease's, so the two understand each other: a lease that one of them holds, the other can't take.
Simpler than palisade-lease in two ways: it asks again every half second instead of queueing, and it does not watch
its key, so a lease that was taken away from it by force is noticed at the next write, which the proxy refuses.

Exit codes: 0 all written, 75 the lease is held elsewhere (--no-wait), 76 the lease was lost, 69 still refused for now when
patience ran out, 1 somebody must look.
"""

import argparse
import base64
import datetime
import http.client
import json
import os
import secrets
import socket
import sys
import threading
import time
import urllib.parse


class LeaseLost(Exception):
    """The lease is not ours any more: stop working."""


class NotFound(OSError):
    """etcd knows no such lease."""


class OutcomeUnknown(Exception):
    """The write was sent, and nobody can say whether it was applied."""


class Refused(Exception):
    """The write was not forwarded and never will be. `problem` is the proxy's document (RFC 9457)."""

    def __init__(self, problem, retry_after=None):
        super().__init__(problem.get("detail") or problem.get("title") or str(problem))
        self.problem = problem
        self.name = problem.get("type", "").removeprefix("urn:palisade:problem:")
        self.retry_after = retry_after


def now():
    """Seconds on a clock that nobody sets and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def request(method, url, body=None, headers=(), timeout=10.0):
    """One HTTP request, sent once. http.client, and not urllib, since that obeys proxies from the environment."""
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=timeout)
    try:
        target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
        connection.request(method, target, body=body, headers=dict(headers))
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def b64(text):
    """The gateway's way to write keys and values."""
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


class Lease:
    """A named lease in etcd. `token` is the mod_revision of its key: larger than any earlier holder's."""

    def __init__(self, etcd, name, ttl=15, prefix="/palisade/"):
        self.etcd = etcd.rstrip("/")
        self.name = name
        self.key = f"{prefix}leases/{name}"
        # The waiters of this name and of no other one: the empty segment keeps `a` apart from `a/b`.
        self.waiters = f"{prefix}waiters/{name}//"
        self.ttl = ttl
        self.token = None
        self.etcd_lease = None
        self._deadline = 0.0
        self._gone = threading.Event()

    def acquire(self, wait=True):
        """Takes the lease and keeps it from then on. False if somebody else has it and `wait` is false."""
        while not self._try():
            if not wait:
                return False
            time.sleep(0.5)
        threading.Thread(target=self._keep, daemon=True).start()
        return True

    def is_valid(self):
        """Whether we may still believe that the lease is ours. No promise about the next moment: that is the proxy's."""
        return not self._gone.is_set() and now() < self._deadline

    def release(self):
        """Gives it back: the key only if it still is ours, then the etcd lease. Repeating it is harmless."""
        self._gone.set()
        ours = {"key": b64(self.key), "target": "MOD", "result": "EQUAL", "mod_revision": str(self.token)}
        self._call("kv/txn", {"compare": [ours], "success": [{"request_delete_range": {"key": b64(self.key)}}]})
        self._revoke()

    def _revoke(self):
        try:
            self._call("lease/revoke", {"ID": self.etcd_lease})
        except NotFound:
            pass  # it has ended by itself

    def _try(self):
        sent = now()
        grant = self._call("lease/grant", {"TTL": str(self.ttl), "ID": "0"})
        self.etcd_lease = grant["ID"]
        attempt = secrets.token_hex(16)
        value = json.dumps({
            "id": attempt,
            "holder": f"{socket.gethostname()}:{os.getpid()}",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "acquired_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "ttl_ms": int(grant["TTL"]) * 1000,
        })
        free = {"key": b64(self.key), "target": "MOD", "result": "EQUAL", "mod_revision": "0"}
        nobody_waits = {
            "key": b64(self.waiters),
            "range_end": b64(self.waiters[:-1] + "0"),  # "0" is the character after "/"
            "target": "CREATE",
            "result": "EQUAL",
            "create_revision": "0",
        }
        put = {"request_put": {"key": b64(self.key), "value": b64(value), "lease": self.etcd_lease}}
        try:
            answer = self._call("kv/txn", {"compare": [free, nobody_waits], "success": [put]})
            won, revision = answer.get("succeeded", False), answer["header"]["revision"]
        except (OSError, http.client.HTTPException):
            # The reply is lost, and it may have been a yes. Whoever holds the lease is who wrote the key.
            won, revision = self._is_mine(attempt)
        if not won:
            self._revoke()
            return False
        self.token = int(revision)
        self._renewed(sent, int(grant["TTL"]))
        return True

    def _is_mine(self, attempt):
        entries = self._call("kv/range", {"key": b64(self.key)}).get("kvs", [])
        for entry in entries:
            if json.loads(base64.b64decode(entry["value"])).get("id") == attempt:
                return True, entry["mod_revision"]
        return False, None

    def _keep(self):
        """Renews every third of the time to live, until the deadline: an etcd that is away for a moment is no loss."""
        while self.is_valid():
            self._gone.wait(self.ttl / 3)
            sent = now()
            try:
                answer = self._call("lease/keepalive", {"ID": self.etcd_lease}, timeout=self.ttl / 3)
            except (OSError, http.client.HTTPException, ValueError):
                continue
            left = int(answer.get("result", {}).get("TTL", 0))
            if left <= 0:
                self._gone.set()
            self._renewed(sent, left)

    def _renewed(self, sent, granted):
        """Counted from when we asked, less a margin, so that we stop before etcd gives the lease to somebody else."""
        ttl = min(self.ttl, granted)
        self._deadline = sent + ttl - max(0.5, ttl / 10)

    def _call(self, method, message, timeout=5.0):
        response, body = request("POST", f"{self.etcd}/v3/{method}", json.dumps(message), timeout=timeout)
        if response.status == 404:
            raise NotFound(method)
        if response.status != 200:
            raise OSError(f"etcd answered {response.status} to {method}: {body.decode(errors='replace').strip()}")
        return json.loads(body)


# How many seconds a write may wait in all, while it is refused for now.
PATIENCE = float(os.environ.get("FENCE_PATIENCE", "60"))


def write(lease, url, data, patience=PATIENCE):
    """PUTs `data` under the lease. Returns (status, reason, headers, body) of the datastore's own answer.

    Raises LeaseLost before sending when the lease has run out, Refused when the proxy says no, and OutcomeUnknown when
    the write may or may not have been applied: then look at what is there before doing it again.
    """
    waited = 0
    while True:
        if not lease.is_valid():
            raise LeaseLost(lease.name)
        headers = {"X-Fence-Token": str(lease.token), "X-Fence-Scope": lease.name, "Content-Type": "text/plain"}
        try:
            response, body = request("PUT", url, data, headers)
        except ConnectionRefusedError:
            raise  # nothing was sent
        except (OSError, http.client.HTTPException) as error:
            raise OutcomeUnknown(str(error)) from error
        outcome = response.headers.get("X-Fence-Outcome")
        if outcome == "unknown":
            raise OutcomeUnknown(body.decode(errors="replace"))
        if outcome != "refused":
            return response.status, response.reason, response.headers, body
        # Refused: nothing was forwarded, so doing it again can't do it twice. Worth it where the proxy names a time.
        # The token in X-Fence-Highest is another worker's: it must never be sent.
        retry_after = response.headers.get("Retry-After")
        refusal = Refused(json.loads(body), retry_after)
        refusal.response = (response.status, response.reason, response.headers, body)
        if response.status != 503 or retry_after is None or waited + int(retry_after) > patience:
            raise refusal
        waited += int(retry_after)
        time.sleep(int(retry_after))


def show(status, reason, headers, body):
    print(f"HTTP/1.1 {status} {reason}")
    for name, value in headers.items():
        print(f"{name}: {value}")
    print()
    print(body.decode(errors="replace"))
    print(f"worker: answered {status}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="PUTs each line of its input to a URL, under a lease.")
    parser.add_argument("url")
    parser.add_argument("--etcd", default="http://127.0.0.1:2379", help="etcd's address (default: %(default)s)")
    parser.add_argument("--lease", required=True, help="the lease's name, which is the scope's name too")
    parser.add_argument("--ttl", type=int, default=15, help="seconds (default: %(default)s)")
    parser.add_argument("--no-wait", action="store_true", help="give up at once if somebody else has the lease")
    options = parser.parse_args()

    lease = Lease(options.etcd, options.lease, options.ttl)
    if not lease.acquire(wait=not options.no_wait):
        print(f"{options.lease} is held elsewhere", file=sys.stderr)
        return 75
    print(f"worker: process {os.getpid()} has the lease, token {lease.token}", flush=True)
    try:
        for line in sys.stdin:
            status, reason, headers, body = write(lease, options.url, line)
            show(status, reason, headers, body)
            if not 200 <= status < 300:
                return 1  # the datastore's own refusal
    except LeaseLost:
        print("the lease was lost", file=sys.stderr)
        return 76
    except Refused as refusal:
        show(*refusal.response)
        print(f"refused ({refusal.name}): {refusal}", file=sys.stderr)
        return {412: 76, 503: 69}.get(refusal.response[0], 1)
    except ConnectionRefusedError as error:
        print(f"nothing was sent: {error}", file=sys.stderr)
        return 1
    except OutcomeUnknown as error:
        print(f"nobody knows whether this was written: {error}", file=sys.stderr)
        return 1
    finally:
        try:
            lease.release()
        except (OSError, http.client.HTTPException) as error:
            print(f"could not give the lease back, so it will lapse: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
