# Every target installs what it needs and says so; `make help` lists them. The work is done by scripts/.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO_TARGET_DIR ?= $(CURDIR)/target
# Arguments for the demo, such as DEMO_ARGS="--seconds 20".
DEMO_ARGS ?=
export CARGO_TARGET_DIR

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench test-vm install uninstall clean

help: ## list the targets
	@echo "evenkeel: keeps CPU sharing on a Linux host even. Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | \
		while IFS='|' read -r target what; do printf '%-18s %s\n' "$$target" "$$what"; done

demo: ## see this host's CPU sharing before and after, with a report (about 3 minutes after the build)
	@scripts/demo.sh $(DEMO_ARGS)

test: ## formatting, lints, and every test: unit, property, fixtures, real kernel, guest
	@scripts/test.sh

test-vm: ## only the tests in an emulated machine (cgroup v2, NUMA, isolated CPUs)
	@scripts/test.sh --only guest

lint: ## formatting, clippy with warnings denied, shellcheck where installed
	@scripts/lint.sh

bench: ## benchmarks (planning 10,000 tasks on 256 CPUs, and others)
	@scripts/packages.sh build
	@. scripts/lib.sh && need_cargo && cargo bench --locked --workspace --bench '*'

install: ## build, then install to PREFIX (/usr/local): binary, man pages, completions, systemd unit
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh

uninstall: ## remove what `make install` installed
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh --remove

clean: ## remove what was built and downloaded
	@. scripts/lib.sh && need_cargo && cargo clean
