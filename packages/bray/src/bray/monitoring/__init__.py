"""Watching runs: configuration of Prometheus and Grafana, and models as TensorBoard graphs."""
