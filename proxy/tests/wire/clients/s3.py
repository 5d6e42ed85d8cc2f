# What an S3 client does, through the proxy, and what the store then has, asked directly.
import sys
import boto3
import botocore.exceptions
from botocore.config import Config

through, direct = sys.argv[1], sys.argv[2]


def client(url, token=None):
    s3 = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )
    if token:
        # Before signing, so that the token is among the signed fields.
        s3.meta.events.register("before-sign.s3", lambda request, **_: request.headers.add_header("X-Fence-Token", token))
    return s3


keys = ["a/b", "a//b", "a/../b", "./x", "../up", "a%2Fb", "a%2fb", "/lead", "//lead", "trail/", "ü b+c&d=e?f#g;h", "~(x)*'!", "a\\b"]
holder, store = client(through, "100"), client(direct)
holder.create_bucket(Bucket="bucket")
for number, key in enumerate(keys):
    holder.put_object(Bucket="bucket", Key=key, Body=f"body {number}".encode())
listed = [one["Key"] for one in store.list_objects_v2(Bucket="bucket")["Contents"]]
assert sorted(listed) == sorted(keys), listed
for number, key in enumerate(keys):
    for s3 in (store, holder):
        assert s3.get_object(Bucket="bucket", Key=key)["Body"].read() == f"body {number}".encode(), key
# Listing through the proxy: keys come back as they are.
assert sorted(one["Key"] for one in holder.list_objects_v2(Bucket="bucket")["Contents"]) == sorted(keys)

upload = holder.create_multipart_upload(Bucket="bucket", Key="large//../key")["UploadId"]
parts = []
for number, size in ((1, 5 << 20), (2, 1000)):
    part = holder.upload_part(Bucket="bucket", Key="large//../key", UploadId=upload, PartNumber=number, Body=bytes([number]) * size)
    parts.append({"PartNumber": number, "ETag": part["ETag"]})
holder.complete_multipart_upload(Bucket="bucket", Key="large//../key", UploadId=upload, MultipartUpload={"Parts": parts})
assert store.get_object(Bucket="bucket", Key="large//../key")["Body"].read() == b"\x01" * (5 << 20) + b"\x02" * 1000

for size in (10, 8 << 20):
    try:
        client(through, "99").put_object(Bucket="bucket", Key="a/b", Body=bytes(size))
        sys.exit("a stale write went through")
    except botocore.exceptions.ClientError as error:
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 412, error.response
assert store.get_object(Bucket="bucket", Key="a/b")["Body"].read() == b"body 0"
for key in keys:
    holder.delete_object(Bucket="bucket", Key=key)
assert [one["Key"] for one in store.list_objects_v2(Bucket="bucket")["Contents"]] == ["large//../key"]
