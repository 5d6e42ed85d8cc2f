# Everything a person types. Each target installs what it needs on Debian or Ubuntu, saying first what; the Rust
# toolchain (https://rustup.rs) is the one thing to bring along.

.PHONY: help demo clean-demo build release test soak fmt docs clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

demo: ## the story: a stalled worker's late write, with Palisade and without (KEEP=1 leaves it running; LEASES=sqlite needs no etcd)
	@scripts/need.sh $(if $(filter sqlite,$(LEASES)),build,demo)
	@echo 'Building (the first time takes some minutes) ...'
	@cargo build --locked --profile demo --bins -p palisade -p palisade-lease -p palisade-examples
	@target/demo/demo $(if $(KEEP),--keep) $(if $(LEASES),--leases $(LEASES))

clean-demo: ## ends and removes what `make demo KEEP=1` left running
	@if [ -x target/demo/demo ]; then target/demo/demo --clean; else echo 'No demo was built here.'; fi

build: ## a debug build of every program, in target/debug
	@scripts/need.sh build
	@cargo build --locked --workspace --bins

release: ## the programs as they are meant to run, in target/release (slow: whole-program optimisation)
	@scripts/need.sh build
	@cargo build --locked --release --bins -p palisade -p palisade-lease

test: ## every check there is; the same that CI runs
	@scripts/need.sh test
	@scripts/test.sh

soak: ## many more seeds of the simulation than `make test` takes (SEEDS=5000 of them; prints how to replay one that fails)
	@scripts/need.sh build
	@SEEDS=$(or $(SEEDS),5000) cargo test --locked -p palisade --test simulation no_seed -- --nocapture

fmt: ## formats the Rust code
	@cargo fmt --all

docs: ## the book, in target/book, and the libraries' reference, in target/doc
	@scripts/need.sh docs
	@scripts/docs.sh

clean: clean-demo ## removes everything that was built
	@cargo clean
