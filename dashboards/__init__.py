"""Grafana dashboards as Python, and the Prometheus configuration that feeds them."""
