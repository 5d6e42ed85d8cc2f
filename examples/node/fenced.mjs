// What a worker in Node needs, without packages: copy this file. `fetch` with the token of the lease, by one rule:
//
//   412, refused                     the lease is another's: stop at once; exit code 76
//   503, refused, with Retry-After   nothing was sent: the same again after that time, waiting 60 s in all
//                                    (FENCE_PATIENCE=seconds for another time), then exit code 69
//   anything else                    as it came; never sent twice
//
// A lost lease needs nothing here: palisade-lease ends its job.

import { setTimeout as sleep } from "node:timers/promises";

/** The proxy refused, so nothing was forwarded. `exit` is the code to end with, `answer` what it said. */
export class Refused extends Error {
  constructor(answer, exit) {
    super(exit === 76 ? "the lease is another's now" : "still refused, and patience has run out");
    this.answer = answer;
    this.exit = exit;
  }
}

/** `fetch` for a worker with this token: fit to be given to a client that takes one of its own. */
export function fencedFetch(token, patience = Number(process.env.FENCE_PATIENCE ?? 60)) {
  return async (url, options = {}) => {
    const headers = new Headers(options.headers);
    headers.set("X-Fence-Token", token);
    let waited = 0;
    for (;;) {
      const answer = await fetch(url, { ...options, headers });
      const refused = answer.headers.get("X-Fence-Outcome") === "refused";
      // The token in X-Fence-Highest is somebody else's, and never to be sent.
      if (refused && answer.status === 412) throw new Refused(answer, 76);
      const later = Number(answer.headers.get("Retry-After"));
      if (!refused || answer.status !== 503 || !(later > 0)) return answer;
      waited += later;
      if (waited > patience) throw new Refused(answer, 69);
      await answer.arrayBuffer();
      await sleep(later * 1000);
    }
  };
}
