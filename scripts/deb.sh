#!/bin/sh
# Builds the Debian packages into target/debian. `make deb` calls it after a release build.
set -eu
cd "$(dirname "$0")/.."

debs=$(command -v cargo-deb || echo target/tools/bin/cargo-deb)
if [ ! -x "$debs" ]; then
  echo 'Installing by cargo into target/tools: cargo-deb (takes some minutes)'
  cargo install --quiet --locked --root target/tools cargo-deb
fi

# Each package has its own folder of manual pages: palisade*.1 would take those of palisade-lease, too.
for program in palisade palisade-lease; do
  made=target/packaging/$program
  rm -rf "$made"
  mkdir -p "$made/man"
  "target/release/$program" man "$made/man"
  "target/release/$program" completions bash >"$made/$program.bash"
  "target/release/$program" completions zsh >"$made/_$program"
  "target/release/$program" completions fish >"$made/$program.fish"
done
mkdir -p target/debian
for package in palisade palisade-lease; do
  "$debs" deb --no-build --package "$package" --output target/debian/
done
