#!/bin/sh
# bench.sh: every figure of the book's page on performance, beside the other proxies that are installed here. Prints tables of
# Markdown and keeps them in target/bench.md; the first one becomes target/bench.json and target/bench.html as well.
# ROUNDS=5 TIME=1s SCOPES=1000000 VERSUS=nginx,haproxy,envoy change it.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
loadtest=$target/release/palisade-loadtest
rounds=${ROUNDS:-5} time=${TIME:-1s}
if [ -x "$target/envoy/bin/envoy" ]; then
  PALISADE_ENVOY=${PALISADE_ENVOY:-$(cd "$target" && pwd)/envoy/bin/envoy}
  export PALISADE_ENVOY
fi

# What is here of what it can be compared with.
peers=${VERSUS-}
if [ -z "$peers" ]; then
  [ ! -e /usr/lib/nginx/modules/ngx_http_lua_module.so ] || peers=nginx
  ! command -v haproxy >/dev/null || peers=$peers,haproxy
  "${PALISADE_ENVOY:-envoy}" --version >/dev/null 2>&1 && peers=$peers,envoy
  peers=${peers#,}
fi
syscalls=
! command -v strace >/dev/null || syscalls=--syscalls

# part TITLE ARGUMENT...: one part of the page.
part() {
  title=$1
  shift
  printf '\n## %s\n\n`palisade-loadtest bench %s`\n\n' "$title" "$*"
  "$loadtest" bench "$@"
}
# beside KIND,...: those to compare with, with these beside them.
beside() { echo "$1${peers:+,$peers}" | sed 's/^,//'; }

{
  echo "# $(date -u +%F), load average $(cut -d' ' -f1 /proc/loadavg)"
  # shellcheck disable=SC2086 # there may be none
  part 'Small requests' --versus "$(beside palisade-unix)" --work get,put-1k --connections 16,64 $syscalls \
    --rounds "$rounds" --time "$time" --json "$target/bench.json" --report "$target/bench.html"
  part 'The access log' --versus palisade-log --work get --connections 16 --rounds "$rounds" --time "$time"
  # nginx has two ways with 64 KiB, and what ran before decides: a run of its own.
  for work in put-64k put-1024k; do
    part "Large requests: $work" ${peers:+--versus "$peers"} --work $work --connections 16,64 --rounds "$rounds" --time "$time"
  done
  part 'Two cores' --two-cores ${peers:+--versus "$peers"} --work get,put-1k --connections 64 --rounds "$rounds" --time "$time"
  part 'One connection, one core' --one-core --versus "$(beside direct)" --work put-1k --connections 1 --rate 2000 \
    --rounds "$rounds" --time "$time"
  for protocol in tls h2; do
    part "Clients with $protocol" --protocol $protocol ${peers:+--versus "$peers"} --work get,put-1k --connections 64 \
      --rounds "$rounds" --time "$time"
  done
  part 'Handovers, one by one' --handovers 300
  part 'Handovers, all at once' --storm 10000 --rounds "$rounds"
  part 'What must not grow' --growth "${SCOPES:-1000000}" --rounds "$rounds" --time "$time"
} | tee "$target/bench.md"
