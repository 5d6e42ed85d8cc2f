#!/bin/sh
# palisade-lease run nightly/report --leases etcd://127.0.0.1:2379 -- examples/shell/worker.sh http://127.0.0.1:8080/report.txt
#
# A worker in shell and curl: PUTs each line of its input to a URL. What makes it a fenced one is a single header: the
# token of its lease, which palisade-lease has put into FENCE_TOKEN. More arguments go to curl as they are.
#
# Exit codes: 0 all written, 76 the lease is another's, 69 still refused for now when patience ran out, 1 somebody must look.
set -eu

url=${1:?usage: worker.sh URL [CURL-OPTION…]}
shift
# How many seconds a write may wait in all, while it is refused for now.
patience=${FENCE_PATIENCE:-60}
echo "worker: process $$ has the lease, token ${FENCE_TOKEN:?run me under palisade-lease}"

# put LINE [CURL-OPTION…]: PUTs once; the response is in $response. Not with curl's --retry: that repeats what may have been
# applied, too.
put() {
  line=$1
  shift
  response=$(printf '%s\n' "$line" |
    curl --silent --show-error --include --noproxy '*' --request PUT --data-binary @- \
      --header 'Content-Type: text/plain' --header "X-Fence-Token: $FENCE_TOKEN" "$@" "$url" | tr -d '\r')
}

# field NAME: a field of the response.
field() {
  printf '%s\n' "$response" | sed -n "/^\$/q; s/^$1: *//Ip"
}

# seen: what came of it, as OUTCOME/STATUS.
seen() {
  echo "$(field X-Fence-Outcome)/$(printf '%s\n' "$response" | sed -n '1s/^[^ ]* \([0-9]*\).*/\1/p')"
}

while IFS= read -r line; do
  waited=0
  put "$line" "$@"
  # Refused for now: nothing was sent to the datastore, so the same again can't do it twice.
  while [ "$(seen)" = refused/503 ] && later=$(field Retry-After) && [ -n "$later" ] && [ $((waited + later)) -le "$patience" ]; do
    waited=$((waited + later))
    sleep "$later"
    put "$line" "$@"
  done
  printf '%s\n' "$response"
  seen=$(seen)
  echo "worker: answered ${seen#*/}"

  case $seen in
    */2*) ;;
    refused/412) # Somebody else has the lease now. The token in X-Fence-Highest is theirs: never send it. Stop.
      exit 76 ;;
    refused/503) exit 69 ;;
    *) # Also when no answer came: it may still be applied, and whoever repeats it must know that twice is fine.
      exit 1 ;;
  esac
done
