# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
# Root has what the kernel tests need: there a missing piece is a failure, for anyone else a skip with its reason.
KERNEL := $(if $(filter 0,$(shell id -u)),required,optional)

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what tests and demo need: Debian packages (as root) and .venv
	@scripts/setup

rootfs: setup ## build and cache the container roots that tests and demo boot (as root; a minute or two, once)
	@scripts/rootfs

test: $(if $(filter required,$(KERNEL)),rootfs,setup) ## all tests; as root they boot real containers, else those are skipped with a reason
	@HOSTTUNE_KERNEL=$(KERNEL) $(BIN)/pytest $(TESTS)

demo: rootfs ## the founding story on a real container: broken, explained, healed by site.yml, taken back (as root)
	@$(BIN)/python scripts/demo

check: ## style, types, unit and case tests, ansible-lint: no root, under two minutes
	@scripts/setup --venv-only
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/unit tests/cases
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --profile production --offline -q

.PHONY: help setup rootfs test demo check
