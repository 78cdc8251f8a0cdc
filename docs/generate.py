"""`python -m docs.generate`: write the generated pages and tables anew (`make generate`).

docs/resource.md, docs/metrics.md and docs/runtimes.md are generated whole; in the chart's README the values table is,
between its two markers.
"""

from pathlib import Path

from docs.chart_values import with_values_table
from docs.metrics_page import metrics_page
from docs.resource_page import resource_page
from docs.runtimes_page import runtimes_page

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "pagefleet"


def files() -> dict[Path, str]:
    """Every generated file with its content; equal bytes every time."""
    return {
        ROOT / "docs" / "resource.md": resource_page(),
        ROOT / "docs" / "metrics.md": metrics_page(),
        ROOT / "docs" / "runtimes.md": runtimes_page(),
        CHART / "README.md": with_values_table(
            (CHART / "README.md").read_text(),
            (CHART / "values.yaml").read_text(),
            (CHART / "values.schema.json").read_text(),
        ),
    }


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content)
