# Signed requests of every odd key; whoever is behind the URL answers 200 to everything.
import sys
import boto3
from botocore.config import Config

s3 = boto3.client(
    "s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret",
    config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
)
s3.meta.events.register("before-sign.s3", lambda request, **_: request.headers.add_header("X-Fence-Token", "100"))
for key in ["a//b", "a/../b", "./x", "a%2Fb", "/lead", "//lead", "ü b+c&d=e?f#g;h", "~(x)*'!"]:
    s3.put_object(Bucket="b", Key=key, Body=b"body", Metadata={"odd": "two  blanks"})
    s3.delete_object(Bucket="b", Key=key)
s3.put_object(Bucket="b", Key="large", Body=bytes(300_000))
