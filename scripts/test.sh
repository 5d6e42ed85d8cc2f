#!/usr/bin/env bash
# Every check there is, the cheap ones first. Stops at the first that fails and says which. `make test` calls it after
# installing what it needs. Leaves nothing running and uses no fixed port, so several may run on one machine.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# step NAME COMMAND...: runs it; at a failure, says which one and how to repeat it.
step() {
  local name=$1 from=$SECONDS
  shift
  printf '\n=== %s\n' "$name"
  if ! "$@"; then
    printf '\nFAILED: %s\n  again: %s\n' "$name" "$*"
    exit 1
  fi
  printf '=== %s: ok, %d s\n' "$name" "$((SECONDS - from))"
}

scripts_parse() {
  local script
  for script in scripts/*.sh examples/shell/*.sh packaging/debian/p* .ci/run; do
    case $(head -n 1 "$script") in
      *bash*) bash -n "$script" ;;
      *) sh -n "$script" ;;
    esac || return
  done
  if command -v shellcheck >/dev/null; then
    shellcheck scripts/*.sh examples/shell/*.sh packaging/debian/p* .ci/run
  fi
}

documentation() { RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --workspace --no-deps; }

tests() {
  # Most tests wait for other processes most of the time: a few more threads than cores.
  # What is started by a test carries the mark, by which it is found if it is left behind.
  RUST_TEST_THREADS=${RUST_TEST_THREADS:-4} PALISADE_TEST_RUN=$mark \
    cargo test --locked --workspace --no-fail-fast 2>&1 | tee "$log"
}

# The fence's core under a model checker, with the switches that take a rule out: a build of its own.
model() { cargo test --locked -p palisade-fence --features sabotage --test model 2>&1 | tee -a "$log"; }

# A build that users run must not have the switches that take a rule out. The first line sees to it that this check
# would notice: there they are switched on.
no_sabotage() {
  local switched_on released
  switched_on=$(release_features -F palisade-fence/sabotage) && released=$(release_features) || return
  grep -w sabotage <<<"$switched_on" >/dev/null || return
  ! grep -w sabotage <<<"$released"
}
release_features() { cargo tree --locked -p palisade -p palisade-lease -e normal,build -f '{p} {f}' "$@"; }

supply_chain() {
  if command -v cargo-deny >/dev/null; then
    cargo deny --log-level error check bans licenses sources
  else
    echo 'skipped: cargo-deny is not installed (cargo install --locked cargo-deny)'
  fi
}

nothing_left_running() {
  local process found=0
  for process in /proc/[0-9]*; do
    if grep -qzx "PALISADE_TEST_RUN=$mark" "$process/environ" 2>/dev/null; then
      printf 'left running: %s %s\n' "${process#/proc/}" "$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null)"
      kill -KILL "${process#/proc/}"
      found=1
    fi
  done
  return "$found"
}

mark=$$-$(date +%s)

step 'shell scripts' scripts_parse
step 'formatting' cargo fmt --all --check
step 'lints' cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
step 'no sabotage in a release' no_sabotage
step 'dependencies' supply_chain
step 'reference documentation' documentation
step 'programs' cargo build --quiet --locked --workspace --bins
step 'tests' tests
step 'model' model
step 'nothing left running' nothing_left_running

printf '\nAll checks passed in %d s.\n' "$SECONDS"
awk '/^test result:/ { passed += $4; failed += $6 } END { print passed " passed, " failed " failed" }' "$log"
