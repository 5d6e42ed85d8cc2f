#!/bin/sh
# Builds the book into target/book and the libraries' reference into target/doc.
set -eu
cd "$(dirname "$0")/.."

mdbook=$(command -v mdbook || echo target/tools/bin/mdbook)
if [ ! -x "$mdbook" ]; then
  echo 'Installing by cargo into target/tools: mdbook (takes some minutes)'
  cargo install --quiet --locked --root target/tools mdbook
fi
"$mdbook" build docs
RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --workspace --no-deps
echo 'The book: target/book/index.html   The libraries: target/doc/palisade_lease/index.html'
