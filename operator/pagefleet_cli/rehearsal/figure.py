"""Runs as a figure: pods, requests and first tokens over time; as PNG, or inside a page that needs nothing else."""

import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagefleet_cli.errors import FactsMissing
from pagefleet_cli.rehearsal.report import clock, headings, reasons, rows
from pagefleet_cli.simulation import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f6feb", "#d9730d")
DPI = 130
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2128; margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid #e3e6ea }
th:first-child, td:first-child, td:last-child.why, th.why { text-align: left }
svg { width: 100%; height: auto } details { margin-top: .5rem } summary { cursor: pointer }
"""


def as_png(runs: Sequence[Summary]) -> bytes:
    """The figure as PNG. Raises FactsMissing where matplotlib is not installed."""
    return _drawn(runs, "png")


def as_html(runs: Sequence[Summary]) -> str:
    """A page with the figure, the table of figures and the timelines. Raises FactsMissing as above."""
    drawing = _drawn(runs, "svg").decode()
    names = " against ".join(html.escape(run.name) for run in runs)
    parts = [
        "<!doctype html>", '<html lang="en"><meta charset="utf-8">', f"<title>pagefleet simulate: {names}</title>",
        f"<style>{_STYLE}</style>", f"<h1>{names}</h1>", drawing[drawing.index("<svg") :],
        "<h2>Figures</h2>", _table(headings(runs), rows(runs)),
        *(f"<p>{html.escape(line)}</p>" for run in runs for line in reasons(run)),
    ]  # fmt: skip
    for run in runs:
        moments = [(clock(at.t), str(at.replicas), str(at.desired), at.reason) for at in run.timeline]
        table = _table(("time", "ready", "desired", "reason"), moments, reasons=True)
        name = html.escape(run.name)
        parts.append(f"<details><summary>Timeline of {name}: {len(moments)} changes</summary>{table}</details>")
    return "\n".join((*parts, "</html>", ""))


def _table(head: Sequence[str], body: Sequence[Sequence[str]], *, reasons: bool = False) -> str:
    why = ' class="why"' if reasons else ""

    def line(cells: Sequence[str], tag: str) -> str:
        marks = [why if place == len(cells) - 1 else "" for place in range(len(cells))]
        inner = (f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True))
        return f"<tr>{''.join(inner)}</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in body)}</table>"


def _drawn(runs: Sequence[Summary], kind: str) -> bytes:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise FactsMissing(
            f"-o {'html' if kind == 'svg' else kind} needs {error.name}: pip install '.[cli,plot]' in a checkout"
        ) from error
    target = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "pagefleet", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(10, 7.2), layout="constrained")
        _draw(figure, runs)
        meta = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(target, format=kind, dpi=DPI, metadata=meta)
    return target.getvalue()


def _draw(figure: "Figure", runs: Sequence[Summary]) -> None:
    pods, requests, waits = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.3, 2))
    end_s = max(run.duration_s for run in runs)
    unit_s, unit = (3600.0, "hours") if end_s > 3 * 3600 else (60.0, "minutes") if end_s > 300 else (1.0, "seconds")
    for run, colour in zip(runs, COLOURS, strict=False):
        _draw_pods(pods, run, unit_s, colour)
        times = [minute.start_s / unit_s for minute in run.minutes]
        waits.plot(times, [minute.first_token_p95_s for minute in run.minutes], color=colour, label=run.name, lw=1.2)
    first = runs[0]
    times = [minute.start_s / unit_s for minute in first.minutes]
    requests.fill_between(times, [each.requests for each in first.minutes], step="post", color="#8b949e", lw=0)
    for slo_s in sorted({run.slo_s for run in runs}):
        waits.axhline(slo_s, color="#cf222e", lw=1, ls="--", label=f"goal {slo_s:g} s")
    pods.set(ylabel="pods", title="Pods: ready (filled), asked for (line)")
    requests.set(ylabel="requests\na minute")
    waits.set(ylabel="first token p95, s", xlabel=f"{unit} since the trace began")
    waits.set_yscale("symlog", linthresh=0.1)
    waits.yaxis.set_major_formatter("{x:g}")
    for axes in (pods, requests, waits):
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#e3e6ea", lw=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    pods.yaxis.get_major_locator().set_params(integer=True)
    pods.legend(loc="best", frameon=False)
    waits.legend(loc="best", frameon=False)
    pods.set_xlim(0, end_s / unit_s)


def _draw_pods(axes: "Axes", run: Summary, unit_s: float, colour: str) -> None:
    times = [*(moment.t / unit_s for moment in run.timeline), run.duration_s / unit_s]
    ready = [moment.replicas for moment in run.timeline]
    desired = [moment.desired for moment in run.timeline]
    axes.fill_between(times, [*ready, ready[-1]], step="post", color=colour, alpha=0.22, lw=0)
    axes.step(times, [*desired, desired[-1]], where="post", color=colour, lw=1.4, label=run.name)
