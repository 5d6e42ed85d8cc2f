import sys
import requests

url, token = sys.argv[1], {"X-Fence-Token": "100"}
session = requests.Session()
answer = session.put(url + "/whole", data=bytes(1_000_000), headers=token)
assert answer.status_code == 200 and answer.headers["X-Fence-Outcome"] == "answered"
answer = session.put(url + "/streamed", data=(bytes(1000) for _ in range(1000)), headers=token)
assert answer.status_code == 200
for body in (b"", b"small", bytes(1_000_000), bytes(5_000_000)):
    answer = session.put(url + "/stale", data=body, headers={"X-Fence-Token": "99"})
    assert answer.status_code == 412, answer.text
    assert answer.json()["type"] == "urn:palisade:problem:stale-token"
    assert answer.headers["X-Fence-Highest"] == "100"
answer = session.post(url + "/stale", json={"a": 1})
assert answer.status_code == 428
assert session.get(url + "/whole").text == "ok"
