# Every target installs what it needs and says so; `make help` lists them. The work is done by scripts/.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO_TARGET_DIR ?= $(CURDIR)/target
# Arguments for the demo, such as DEMO_ARGS="--seconds 20".
DEMO_ARGS ?=
# Arguments for `make validate`, such as VALIDATE_ARGS="--seconds 60".
VALIDATE_ARGS ?=
# Arguments for `make truth`: trials a row (2000), and part of a row's name.
TRUTH_ARGS ?=
# Rounds, drawn cases and events of `make test-kill`.
KILLS ?= 200
CASES ?= 1000000
EVENTS ?= 20000
# Arguments for `make mutants`, such as MUTANTS_ARGS="--part base --shard 0/4".
MUTANTS_ARGS ?=
# Arguments of `make services`, such as SERVICES_ARGS="--batch compile --rounds 10".
SERVICES_ARGS ?=
# Runs of `make test-ends`, and arguments such as ENDS_ARGS="--only run:timeout -v --seed 7".
ENDS ?= 1000
ENDS_ARGS ?=
# Of `make antagonists`: how many, and quiet minutes after them.
ANTAGONISTS ?= 100
QUIET_MINUTES ?= 10
# Of `make kubernetes-decisions`.
DECISIONS ?= 20
# Of `make kubernetes-churn`: pods, and over how many minutes.
PODS ?= 200
MINUTES ?= 30
# Of `make serve-figures`: which (all).
FIGURES ?=
# Of `make fuzz`: seconds for each target, and which (all).
FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?=
# Of `make static` and `make packages`: x86_64 or arm64 (this host's). Of `make test-arm64`: which (five).
ARCH ?=
CRATES ?=
export CARGO_TARGET_DIR

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z0-9-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@echo "evenkeel: keeps CPU sharing on a Linux host even. Targets:"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | \
		while IFS='|' read -r target what; do printf '%-20s %s\n' "$$target" "$$what"; done

demo: ## see this host's CPU sharing before and after, with a report (at most 8 minutes after the build)
	@scripts/demo.sh $(DEMO_ARGS)

test: ## formatting, lints, and every test: unit, property, fixtures, real kernel, guest
	@scripts/test.sh

test-vm: ## the tests in emulated machines (cgroup v2, NUMA, isolated CPUs), on every kernel from 5.10 to 7.x (half an hour)
	@scripts/test.sh --only guest --all

test-arm64: ## unit tests of CRATES (five) built for arm64, under qemu's user emulation; the program is built and started, too
	@scripts/test-arm64.sh $(CRATES)

test-arm64-guest: ## an arm64 machine emulated with Debian's arm64 kernel: check, `why` by BPF, changes, a kill -9, restore (minutes)
	@EVENKEEL_GUEST_TESTS="$$(scripts/test-arm64.sh --no-run evenkeel-linux)" scripts/guest/arm64.sh \
		"$$(CARGO_PROFILE_DEV_DEBUG=0 scripts/static.sh --profile dev aarch64)" '$(CARGO_TARGET_DIR)/tmp/arm64' kernel unit

test-kill: ## `kill -9` at KILLS random instants (200), hostile clients (10,000) and EVENTS of a hostile host (20,000), CASES crashes (1,000,000)
	@EVENKEEL_KILL_ROUNDS=$(KILLS) scripts/test.sh --only 'privileged_kill*'
	@EVENKEEL_HOSTILE_CONNECTIONS=10000 scripts/test.sh --only privileged_ends
	@EVENKEEL_HOSTILE_EVENTS=$(EVENTS) scripts/test.sh --only 'privileged_hostile*'
	@. scripts/lib.sh && need_cargo && EVENKEEL_CRASH_CASES=$(CASES) nice -n 10 cargo test --locked --release \
		-p evenkeel-actuate --test crashes many_cases -- --nocapture

antagonists: ## ANTAGONISTS (100) put in a victim's way: is each named within 10 s, and no other (as root, quiet, 50 min)
	@scripts/packages.sh build test
	@. scripts/lib.sh && need_cargo && cargo build --locked --release -p evenkeel
	@. scripts/lib.sh && need_cargo && EVENKEEL_ANTAGONISTS='$(ANTAGONISTS)' EVENKEEL_ANTAGONISTS_QUIET='$(QUIET_MINUTES)' \
		cargo test --locked --release -p evenkeel --test privileged_antagonists -- --nocapture

alerts: ## are notices and alert rules right: 60 labelled episodes to tune on, 40 others to judge by (minutes, no root)
	@scripts/packages.sh build test
	@. scripts/lib.sh && need_cargo && EVENKEEL_ALERTS=all cargo test --locked -p evenkeel-listen --lib labelled -- --nocapture --test-threads 1

serve-figures: ## what serve and its dashboard cost, each figure with its goal (as root, quiet machine, 10 min)
	@scripts/packages.sh build test
	@. scripts/lib.sh && need_cargo && cargo build --locked --release -p evenkeel
	@EVENKEEL='$(CARGO_TARGET_DIR)/release/evenkeel' scripts/serve-figures.sh $(FIGURES)

test-ends: ## ENDS runs (1000): every command ended in every way in every state; compares the host's scheduling state (as root)
	@scripts/packages.sh build test
	@. scripts/lib.sh && need_cargo && cargo build --locked -p evenkeel
	@. scripts/lib.sh && as_root python3 scripts/ends/ends.py --evenkeel '$(CARGO_TARGET_DIR)/debug/evenkeel' --runs '$(ENDS)' --lanes 3 $(ENDS_ARGS)

fuzz: ## every parser under libFuzzer, FUZZ_SECONDS (600) for each of FUZZ_TARGETS (all): what fails becomes a regression
	@FUZZ_SECONDS='$(FUZZ_SECONDS)' FUZZ_TARGETS='$(FUZZ_TARGETS)' scripts/fuzz.sh

lint: ## formatting, clippy with warnings denied, shellcheck where installed
	@scripts/lint.sh

validate: ## the simulator against this kernel: measures random mixes (as root, 20 quiet minutes), compares
	@scripts/validate.sh $(VALIDATE_ARGS)

sources: ## the sources' tables next to the simulator's, row by row, and what load makes the advisor's figures (3 minutes)
	@scripts/packages.sh build
	@. scripts/lib.sh && need_cargo && cargo test --locked --release -p evenkeel-model --test sources -- --nocapture --test-threads 1
	@. scripts/lib.sh && need_cargo && cargo run --locked --release -p evenkeel-model --example advisor

bench: ## benchmarks: planning for 10,000 tasks on 256 CPUs; what watching 2,000 tasks costs, compared with other tools (as root)
	@scripts/packages.sh build
	@. scripts/lib.sh && need_cargo && cargo bench --locked --workspace --bench '*'
	@scripts/cost.sh
	@scripts/compare.sh

outsiders: ## a redis under light load and a compile next to a mix that the loop evens out: what they feel (8 minutes, as root)
	@scripts/packages.sh build test
	@scripts/services/services.sh --part outsiders

truth: ## how often the decision, and the watch after it, is wrong, and how soon right, on a made-up host (minutes)
	@scripts/packages.sh build
	@. scripts/lib.sh && need_cargo && cargo build --locked --release -p evenkeel-policy --examples
	@decided=0; watched=0; \
		'$(CARGO_TARGET_DIR)/release/examples/truth' $(TRUTH_ARGS) || decided=$$?; \
		'$(CARGO_TARGET_DIR)/release/examples/truth_monitor' $(TRUTH_ARGS) || watched=$$?; \
		[ $$decided = 0 ] && [ $$watched = 0 ]

mutants: ## do the tests notice a wrong decision, guard, statistic or order of undo: one change at a time (hours; MUTANTS_ARGS)
	@scripts/mutants.sh $(MUTANTS_ARGS)

why-cost: ## what `why` costs a load of context switches while it watches (as root, two minutes, quiet machine)
	@scripts/packages.sh build
	@. scripts/lib.sh && need_cargo && cargo run --locked --release -p evenkeel-bpf --example why_cost

services: ## what clients of a redis see next to batch work, alone and under `run --service --background` (as root, quiet, 20 min)
	@scripts/packages.sh build test
	@scripts/services/services.sh $(SERVICES_ARGS)

tenants: ## figures on tenants: rr against C, agreement of two runs, weights, 24 Mbit/s (as root, quiet machine)
	@scripts/tenants.sh

lab-figures: ## the laboratory's own figures: wake-up, overhead, weights, quota, sysbench, its short suite (as root, quiet, 10 min)
	@scripts/packages.sh build test
	@. scripts/lib.sh && need_cargo && cargo build --locked --release -p evenkeel
	@EVENKEEL='$(CARGO_TARGET_DIR)/release/evenkeel' scripts/lab-figures.sh

takeover-figures: ## what a restart costs a service beside the loop: 30 kills (as root, quiet machine, 13 min)
	@scripts/packages.sh build test
	@scripts/services/services.sh --part takeover $(TAKEOVER_ARGS)

promises: ## are promised shares kept: 40/50/10 on one CPU, 20 random sets, a spike, Docker containers (12 minutes, as root)
	@scripts/packages.sh build test
	@scripts/promises.sh

static: ## one file without shared libraries, to copy to other hosts: of this architecture, or ARCH=arm64
	@scripts/static.sh $(ARCH)

packages: ## .deb, .rpm and OCI image of the static program, without a network, in target/packages (ARCH=arm64: cross-built)
	@scripts/make-packages.sh $(if $(ARCH),--arch '$(ARCH)')

crates: ## pack every crate for a registry and build each from its package without clang; nothing is published (as long as a build)
	@scripts/crates.sh

test-packages: ## install, upgrade, remove and purge the packages in a clean Debian root, and in a machine with systemd (debootstrap, as root, minutes)
	@scripts/packages.sh build package clean-root
	@. scripts/lib.sh && need_cargo && cargo build --locked -p evenkeel
	@scripts/test-packages.sh '$(CARGO_TARGET_DIR)/debug/evenkeel'
	@scripts/test-packages-boot.sh '$(CARGO_TARGET_DIR)/debug/evenkeel'

test-chart: ## lint and render the Helm chart; the plain manifests are what it renders (builds helm with Go where there is none)
	@scripts/packages.sh test
	@scripts/test-chart.sh

test-kubernetes: ## the chart in a real one-node Kubernetes, built and started for it, ended after it (as root, quiet, minutes)
	@scripts/packages.sh build test kubernetes
	@. scripts/lib.sh && need_cargo && cargo build --locked -p evenkeel
	@scripts/test-kubernetes.sh '$(CARGO_TARGET_DIR)/debug/evenkeel'

kubernetes-decisions: ## DECISIONS (20) there beside loops that never sleep, while other programs come and go: is one kept that helps the loops (as root, 40 min)
	@scripts/packages.sh build test kubernetes
	@. scripts/lib.sh && need_cargo && cargo build --locked --release -p evenkeel
	@scripts/test-kubernetes.sh '$(CARGO_TARGET_DIR)/release/evenkeel' --decisions '$(DECISIONS)'

kubernetes-churn: ## PODS (200) that start, resize, restart and end there in MINUTES (30) beside a promise: is a setting lost or fought over (as root)
	@scripts/packages.sh build test kubernetes
	@. scripts/lib.sh && need_cargo && cargo build --locked --release -p evenkeel
	@scripts/test-kubernetes.sh '$(CARGO_TARGET_DIR)/release/evenkeel' --churn '$(PODS)' --minutes '$(MINUTES)'

test-mcp: ## drive `evenkeel mcp` with the official client library (Python, from PyPI, in a folder of its own under target)
	@. scripts/lib.sh && need_cargo && cargo build --locked -p evenkeel
	@test -x target/mcp-client/bin/python || python3 -m venv target/mcp-client
	@target/mcp-client/bin/python -c 'import mcp' 2>/dev/null || target/mcp-client/bin/pip --quiet install 'mcp>=2.3'
	@target/mcp-client/bin/python scripts/mcp-client.py '$(CARGO_TARGET_DIR)/debug/evenkeel'

test-axe: ## judge every page of the dashboard by axe-core (from npm, in a folder of its own under target); as root
	@test -e target/axe/node_modules/axe-core/axe.min.js || npm install --silent --no-audit --no-fund --prefix target/axe axe-core@4
	@. scripts/lib.sh && need_cargo && EVENKEEL_AXE="$$PWD/target/axe/node_modules/axe-core/axe.min.js" \
		cargo test --locked -p evenkeel --test privileged_serve every_page

install: ## build, then install to PREFIX (/usr/local): binary, man pages, completions, systemd unit
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh

uninstall: ## remove what `make install` installed
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh --remove

clean: ## remove what was built and downloaded
	@. scripts/lib.sh && need_cargo && cargo clean
