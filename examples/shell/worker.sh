#!/bin/sh
# palisade-lease run nightly/report --leases etcd://127.0.0.1:2379 -- examples/shell/worker.sh http://127.0.0.1:8080/report.txt
#
# A worker in shell and curl: PUTs each line of its input to a URL. What makes it a fenced one is a single header: the
# token of its lease, which palisade-lease has put into FENCE_TOKEN. More arguments go to curl as they are.
set -eu

url=${1:?usage: worker.sh URL [CURL-OPTION…]}
shift
echo "worker: process $$ has the lease, token ${FENCE_TOKEN:?run me under palisade-lease}"

while IFS= read -r line; do
  # One try. A write whose answer did not come may still be applied: whoever repeats it must know that twice is fine.
  response=$(printf '%s\n' "$line" |
    curl --silent --show-error --include --noproxy '*' --request PUT --data-binary @- \
      --header 'Content-Type: text/plain' --header "X-Fence-Token: $FENCE_TOKEN" "$@" "$url" | tr -d '\r')
  printf '%s\n' "$response"
  status=$(printf '%s\n' "$response" | sed -n '1s/^[^ ]* \([0-9]*\).*/\1/p')
  echo "worker: answered ${status:-nothing}"

  case $status in
    2*) ;;
    412) # Somebody else has the lease now. The token in X-Fence-Highest is theirs: never send it. Stop.
      exit 1 ;;
    *) exit 2 ;;
  esac
done
