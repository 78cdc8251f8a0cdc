"""`python -m tests.charts.golden`: write the golden files anew; needs the Helm binary of `e2e.cluster prepare`."""

from tests.charts.golden import CASES, golden_path, text

for case in CASES:
    golden_path(case).write_text(text(case))
