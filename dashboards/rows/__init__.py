"""The rows of the fleet dashboard. Every panel's description says what to do."""

from dashboards.panels import Row
from dashboards.rows import engine, health, latency, load, scaling, throughput, totals

ROWS: tuple[Row, ...] = (
    health.WELL,
    latency.LATENCY,
    load.LOAD,
    scaling.SCALING,
    throughput.THROUGHPUT,
    engine.ENGINE,
    totals.TOTALS,
)
"""Top to bottom."""
