"""Metrics for Prometheus: one list of names, what the read model says under them, and an endpoint that tells it."""
