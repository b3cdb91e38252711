.PHONY: help test long gpu lint types contracts slow coverage isa pin release build docs check api
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*##/\t/' | expand -t 12

test:  ## before a commit: the README's command, every component once for real, under 6 minutes
	uv run pytest

long:  ## what CI runs besides: guide pages, kills and restarts on Ray, fuzzers, a C++ compiler
	uv run pytest -m "long and not slow and not gpu"

slow:  ## learning runs and soak tests, minutes each: before a release
	uv run pytest -m slow

coverage:  ## all that CI tests, with a coverage report
	uv run pytest -m "not slow and not gpu" --cov --cov-report=term-missing:skip-covered

# What torch, MKL and oneDNN round with. MKL heeds the second variable on Intel's CPUs alone, so
# on others its kernels stay the same under avx2.
ISA_default := ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41
ISA_avx2 := ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
ISA_native :=
ISA_TESTS ?= -m "isa and not slow and not gpu and not ray"

isa: isa-default isa-avx2 isa-native  ## what rests on rounding, under three instruction sets; ISA_TESTS= runs the whole suite

isa-%:
	$(ISA_$*) uv run pytest $(ISA_TESTS)

gpu:  ## on a machine with a GPU, nine minutes: tests, rooflines, rates, Pong (benchmarks/gpu)
	uv run python -m benchmarks.gpu.everything

lint:  ## style
	uv run ruff check
	uv run ruff format --check

types:  ## strict types of all public packages
	uv run mypy $(wildcard packages/*/src)

contracts:  ## who may import whom
	uv run lint-imports

check: lint types contracts test long  ## all that CI checks but `isa`

pin:  ## write the versions of this environment into pyproject.toml as constraints
	uv run python scripts/pin.py

release:  ## version, pins, changelogs, commit and tag: VERSION=0.2.0; DRY_RUN=--dry-run only says what
	uv run python scripts/release.py $(VERSION) $(DRY_RUN)

build:  ## eight wheels into dist/
	uv build --all-packages --no-sources

docs:  ## the site into site/, warnings are errors
	uv run python scripts/site.py

api:  ## renew tests/api, the snapshot of the public interface
	uv run python scripts/api_snapshot.py write
