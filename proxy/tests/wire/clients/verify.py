# Checks the signatures of requests as a store received them (AWS Signature Version 4), from a JSON list of their heads.
import hashlib
import hmac
import json
import re
import sys


def signature(method, target, fields, authorization):
    credential, signed, _ = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=([^,]+), SignedHeaders=([^,]+), Signature=([0-9a-f]+)", authorization
    ).groups()
    path, _, query = target.partition("?")
    lines = "".join(f"{name}:{re.sub(' +', ' ', fields[name])}\n" for name in signed.split(";"))
    pairs = sorted(pair if "=" in pair else pair + "=" for pair in query.split("&") if pair)
    canonical = "\n".join([method, path, "&".join(pairs), lines, signed, fields["x-amz-content-sha256"]])
    scope = credential.split("/", 1)[1]
    to_sign = "\n".join(["AWS4-HMAC-SHA256", fields["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4secret"
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()


count = 0
for head in json.loads(sys.argv[1]):
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    fields = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines if line)}
    authorization = fields["authorization"]
    assert "x-fence-token" in authorization and "host" in authorization, authorization
    assert signature(method, target, fields, authorization) == authorization[-64:], head
    count += 1
print(count)
