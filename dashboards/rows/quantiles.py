"""The three lines that every duration is shown by."""

from dashboards.expressions import quantile
from dashboards.panels import Query
from pagefleet_api.metrics import Metric


def quantiles(metric: Metric) -> tuple[Query, ...]:
    """Median, 95th and 99th percentile of a histogram."""
    return tuple(Query(quantile(metric, share), f"p{share * 100:.0f}") for share in (0.5, 0.95, 0.99))
