# qcast: `make demo` shows it, `make test` checks it. Each target installs what it needs first.

CARGO ?= cargo
DIST ?= bookworm

.DEFAULT_GOAL := help
.PHONY: help setup build demo demo-members test test-device lint docs bench bench-peers bench-verbs fresh clean

help: ## list the targets
	@echo "qcast: reliable publish/subscribe over RDMA unreliable datagrams"
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r target text; do \
		printf '  make %-13s %s\n' "$$target" "$$text"; done

setup: ## install what a build needs (Debian 12, 13, Ubuntu 24.04; root or sudo)
	@scripts/setup

build: setup ## build the release binary, target/release/qcast
	$(CARGO) build --release

demo: build ## send a real file through induced loss to three subscribers, and to one with another key
	@scripts/demo

demo-members: build ## show eight members see each other come, freeze, die, come again and leave, in time
	@scripts/demo-members

test: ## run every check; `scripts/test --list` names the stages, `scripts/test STAGE` runs one
	@scripts/test

test-device: ## run the suite of the device contract on real devices: make test-device DEVICE=verbs:mlx5_0[,verbs:mlx5_1]
	@test -n "$(DEVICE)" || { echo "say which: make test-device DEVICE=verbs:mlx5_0" >&2; exit 2; }
	QCAST_TEST_DEVICES="$(subst verbs:,,$(DEVICE))" $(CARGO) test --test conformance real:: -- --ignored --test-threads=1

lint: ## run the checks that run no test
	@scripts/test lint

docs: setup ## build the API documentation, target/doc/qcast/index.html
	@scripts/test docs

bench: build ## measure throughput and latency, each against plain UDP in the same run
	@scripts/bench

bench-peers: ## measure the same workloads on other systems too (root; settings: benches/peers/README.md)
	@benches/peers/run

bench-verbs: build ## measure qcast against perftest's UD multicast on Soft-RoCE in a virtual machine; prints the ratio
	@scripts/setup test
	@tests/vm/run --timeout 1200 tests/vm/against-perftest

fresh: ## prove setup, demo and test on a bare system: make fresh [DIST=bookworm|trixie]
	@scripts/fresh $(DIST)

clean: ## remove what builds wrote (not what setup installed)
	$(CARGO) clean
