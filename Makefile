# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
# Two processes: the lab's guest in one, what uses this machine's own containers in the other (tests/conftest.py).
SIDE_BY_SIDE := -n 2 --no-loadscope-reorder
# Root has what the kernel tests need: there a missing piece is a failure, for anyone else a skip with its reason.
KERNEL := $(if $(filter 0,$(shell id -u)),required,optional)

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what tests and demo need: Debian packages (as root) and .venv
	@scripts/setup

rootfs: setup ## build and cache the container roots that tests and demo boot (as root; a minute or two, once)
	@scripts/rootfs

test: $(if $(filter required,$(KERNEL)),rootfs,setup) ## all tests; as root they boot real containers, else those are skipped with a reason
	@HOSTTUNE_KERNEL=$(KERNEL) $(BIN)/pytest $(SIDE_BY_SIDE) $(TESTS)

demo: setup ## from the reboot that broke CUDA to a valid benchmark figure, in a virtual host (as root; minutes)
	@$(BIN)/python scripts/demo

demo-native: rootfs ## the founding story on a real container of this machine: broken, explained, healed, taken back (as root; seconds)
	@$(BIN)/python scripts/demo-native

check: ## style, types, unit and case tests, ansible-lint: no root, under two minutes
	@scripts/setup --venv-only
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q $(SIDE_BY_SIDE) tests/unit tests/cases
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --profile production --offline -q

lab-up: setup ## start the lab: a virtual Proxmox host with eight GPUs (as root; some minutes the first time, then seconds)
	@$(BIN)/python -m lab up

lab-ssh: ## a shell in the lab's host
	@$(BIN)/python -m lab ssh

lab-reboot: ## really reboot it; APPEND=hosttune=off gives the kernel words
	@$(BIN)/python -m lab reboot "$(APPEND)"

lab-break: ## break it as real hosts broke: CASE=founding, or no CASE for a list
	@$(BIN)/python -m lab break $(CASE)

lab-down: ## switch it off and throw its disk away
	@$(BIN)/python -m lab down

lab-status: ## which guests run on this machine
	@$(BIN)/python -m lab status

.PHONY: help setup rootfs test demo demo-native check lab-up lab-ssh lab-reboot lab-break lab-down lab-status
