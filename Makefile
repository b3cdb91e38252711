.PHONY: help test lint types contracts slow coverage pin build docs check
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*##/\t/' | expand -t 12

test:  ## the default suite
	uv run pytest

slow:  ## learning runs and soak tests, minutes each
	uv run pytest -m slow

coverage:  ## the default suite with a coverage report
	uv run pytest --cov --cov-report=term-missing:skip-covered

lint:  ## style
	uv run ruff check
	uv run ruff format --check

types:  ## strict types of all public packages
	uv run mypy $(wildcard packages/*/src)

contracts:  ## who may import whom
	uv run lint-imports

check: lint types contracts test  ## all that CI checks

pin:  ## write the versions of this environment into pyproject.toml as constraints
	uv run python scripts/pin.py

build:  ## eight wheels into dist/
	uv build --all-packages --no-sources

docs:  ## the site into site/, warnings are errors
	uv run zensical build --strict --clean
