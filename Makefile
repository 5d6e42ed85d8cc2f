# Everything a person types. Each target installs what it needs on Debian or Ubuntu, saying first what; the Rust
# toolchain (https://rustup.rs) is the one thing to bring along.

.PHONY: help demo clean-demo build release test chaos baselines bench fmt docs clean soak members lease-soak bench-lease deb

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

deb: release ## Debian packages of both programs, in target/debian
	@scripts/deb.sh

test: ## every check there is; the same that CI runs
	@scripts/need.sh test
	@scripts/test.sh

chaos: ## ten minutes of faults, then the checker (TIME=1m SEED=7 FAULTS=proxy,store PROXY=naive PROXIES=3 MEMBERS=3 change that)
	@scripts/need.sh test
	@cargo build --locked --bins -p palisade -p palisade-loadtest
	@target/debug/palisade-loadtest chaos --time $(or $(TIME),10m) --faults $(or $(FAULTS),all) \
	  --proxy $(or $(PROXY),palisade) --proxies $(or $(PROXIES),1) --members $(or $(MEMBERS),1) $(if $(SEED),--seed $(SEED)) --history target/history.jsonl --report target/chaos.html

baselines: ## the same faults before proxies that are no fence, and before Palisade, as a table; 4 min each (TIME=1m SEED=7)
	@scripts/need.sh test
	@cargo build --locked --bins -p palisade -p palisade-loadtest
	@rm -f target/baseline-*.jsonl
	@for proxy in none naive naive-durable nginx haproxy palisade; do \
	  target/debug/palisade-loadtest chaos --time $(or $(TIME),4m) --seed $(or $(SEED),7) --scopes 1 --workers 4 --show 1 \
	    --proxy $$proxy --history target/baseline-$$proxy.jsonl || [ $$? = 1 ] || echo "left out: $$proxy"; \
	done
	@target/debug/palisade-loadtest table target/baseline-*.jsonl

bench: release ## what a request costs, beside nginx, HAProxy and Envoy, and what was meant to be kept; 20 min (ROUNDS=5 TIME=1s VERSUS=nginx)
	@scripts/need.sh bench
	@cargo build --locked --release --bins -p palisade-loadtest
	@ROUNDS=$(ROUNDS) TIME=$(TIME) VERSUS=$(VERSUS) SCOPES=$(SCOPES) scripts/bench.sh

soak: ## many more seeds of the simulation than `make test` takes (SEEDS=5000 of them; prints how to replay one that fails)
	@scripts/need.sh build
	@SEEDS=$(or $(SEEDS),5000) cargo test --locked -p palisade --test simulation no_seed -- --nocapture

members: ## three etcd members, the leader killed every 10 s for 2 min under load with handovers (KILLS=, EVERY= seconds)
	@scripts/need.sh test
	@cargo build --locked --bins -p palisade
	@KILLS=$(or $(KILLS),12) EVERY=$(or $(EVERY),10) cargo test --locked -p palisade --test outages leader -- --nocapture

lease-soak: ## jobs cut off from etcd, frozen, killed, their leases revoked, 100 times each (RUNS=); the leader killed every 15 s (KILLS=12)
	@scripts/need.sh test
	@cargo build --locked --bins -p palisade -p palisade-lease
	@PALISADE_RUNS=$(or $(RUNS),100) cargo test --locked -p palisade-lease --test jobs -- l1_ l2_ l3_a_killed_program l6_
	@PALISADE_RUNS=$(or $(RUNS),100) cargo test --locked -p palisade-lease --test incidents -- l1_ l15_
	@PALISADE_RUNS=$(or $(KILLS),12) cargo test --locked -p palisade-lease --test members

bench-lease: ## palisade-lease beside `etcdctl lock`, on one etcd; takes some minutes
	@scripts/need.sh test
	@cargo build --locked --release -p palisade-lease --bins --example beside_etcdctl
	@target/release/examples/beside_etcdctl

fmt: ## formats the Rust code
	@cargo fmt --all

docs: ## the book, in target/book, and the libraries' reference, in target/doc
	@scripts/need.sh docs
	@scripts/docs.sh

clean: clean-demo ## removes everything that was built
	@cargo clean
