import sys
import httpx

url = sys.argv[1]
with httpx.Client(http1=False, http2=True, timeout=60) as client:
    for _ in range(10):
        answer = client.put(url + "/x", content=bytes(100_000), headers={"X-Fence-Token": "100"})
        assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
        answer = client.put(url + "/stale", content=bytes(100_000), headers={"X-Fence-Token": "99"})
        assert (answer.status_code, answer.json()["highest"]) == (412, 100)
        assert client.get(url + "/x").text == "ok"
