# `make help` lists what there is.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PAGE ?= golden/pages/unlimited-ocr-tiny-invoice.png
BUNDLE := out/unlimited-ocr-sym8

.PHONY: help demo test lint golden bench venv

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

demo: ## export the built-in checkpoint and read a page with it
	cargo build --release
	@mkdir -p $(dir $(BUNDLE))
	target/release/aimodel export --model unlimited-ocr --checkpoint built-in --quant sym8 --output $(BUNDLE) --force
	target/release/aimodel read --bundle $(BUNDLE) --image $(PAGE)

# In the dev profile, whose own code is optimised enough: building for release takes longer than it saves.
test: venv ## run every test, Apple's runtime and the doctor included: about a quarter of an hour on two cores
	AIMODEL_PYTHON="$(CURDIR)/$(VENV)/bin/python" cargo test

lint: ## check format, clippy and documentation
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps

golden: ## write snapshots and expected texts anew and show what has changed
	@cargo insta --version >/dev/null 2>&1 || { \
		echo "error: cargo-insta is missing: snapshots within the code are written by it" >&2; \
		echo "hint: cargo install --locked cargo-insta" >&2; exit 3; }
	cargo insta test --accept --lib
	TRYCMD=overwrite cargo test --test cli
	git --no-pager diff --stat

bench: venv ## run the benchmarks
	AIMODEL_PYTHON="$(CURDIR)/$(VENV)/bin/python" cargo bench
	if [ -x benches/fullsize.sh ]; then benches/fullsize.sh; fi

venv: $(VENV)/requirements.txt ## install Apple's runtime and the doctor into .venv

# The copy is the last step, so it is there only when everything is installed.
$(VENV)/requirements.txt: tests/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { \
		echo "error: coreai-core needs Python 3.11 to 3.14, $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; \
		echo "hint: name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 3; }
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/requirements.txt
	cp tests/requirements.txt $@
