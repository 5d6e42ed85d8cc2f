const url = process.argv[1];
const put = (path, token, size) =>
  fetch(url + path, { method: "PUT", headers: { "X-Fence-Token": token }, body: new Uint8Array(size) });
(async () => {
  const good = await put("/x", "100", 1_000_000);
  if (good.status !== 200 || (await good.text()) !== "ok") throw new Error(good.status);
  for (const size of [10, 60_000, 5_000_000]) {
    const stale = await put("/stale", "99", size);
    const problem = await stale.json();
    if (stale.status !== 412 || problem.highest !== 100) throw new Error(JSON.stringify(problem));
  }
})();
