#!/usr/bin/env python3
"""Draws dashboard.json as an SVG from what a Prometheus has: each panel's own queries, at the panel's own place.

It is not Grafana: the picture shows what the queries give, not how Grafana paints it. Only the standard library is needed.

    draw.py http://127.0.0.1:9090 dashboard.svg [MINUTES]

It ends with 1 if a query is refused, and says which panels had nothing to show.
"""

import html
import json
import math
import pathlib
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

COLUMN, ROW, GAP = 60, 38, 8
COLOURS = ["#3274d9", "#e0752d", "#37872d", "#8f3bb8", "#c4162a", "#b58a00", "#1f8a99", "#705da0"]
# What Grafana puts in for its own variables.
VARIABLES = {"$instance": ".*", "$__rate_interval": "1m"}


def ask(prometheus, path, **query):
    url = f"{prometheus.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        raise SystemExit(f"Prometheus refuses {query['query']}: {said}") from None


def amount(value, unit):
    """A number as a person reads it."""
    if unit == "s":
        for size, name in ((86400 * 2, "d"), (7200, "h"), (120, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us")):
            if abs(value) >= size:
                return f"{value / {'d': 86400, 'h': 3600, 'min': 60}.get(name, size):.3g} {name}"
        return f"{value:.3g} s"
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return text + ("/s" if unit == "reqps" else "")


def name_of(labels, legend):
    """What Grafana calls a series: its legend with the labels put in, or all labels."""
    if legend and legend != "__auto":
        for label, value in labels.items():
            legend = legend.replace("{{" + label + "}}", value).replace("{{ " + label + " }}", value)
        return legend
    kept = {label: value for label, value in labels.items() if label not in ("__name__", "job", "instance")}
    return " ".join(kept.values()) or labels.get("__name__", "value")


def series_of(prometheus, panel, begin, end):
    """The panel's series: a name, and points with a value."""
    found = []
    for target in panel["targets"]:
        query = target["expr"]
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)
        for series in ask(prometheus, "query_range", query=query, start=begin, end=end, step=max(1, (end - begin) / 240)):
            points = [(at, float(value)) for at, value in series["values"]]
            points = [(at, value) for at, value in points if math.isfinite(value)]
            if points:
                found.append((name_of(series["metric"], target.get("legendFormat", "")), points))
    return found


def text(x, y, words, size=12, colour="#24292e", anchor="start", weight="normal"):
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{html.escape(words)}</text>'
    )


def stat(series, unit, width, height):
    value = amount(series[0][1][-1][1], unit) if series else "no data"
    return [text(width / 2, height / 2 + 22, value, 26 if series else 14, "#24292e" if series else "#8a8f98", "middle", "bold")]


def graph(series, unit, width, height, begin, end):
    left, top, right, bottom = 70, 34, width - 12, height - 50
    if not series:
        return [text(width / 2, height / 2, "no data", 14, "#8a8f98", "middle")]
    most = max(value for _, points in series for _, value in points)
    least = min(0, min(value for _, points in series for _, value in points))
    if most <= least:
        most = least + 1
    drawn = []
    for part in range(4):
        value = least + (most - least) * part / 3
        y = bottom - (bottom - top) * part / 3
        drawn.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e1e4e8"/>')
        drawn.append(text(left - 6, y + 4, amount(value, unit), 10, "#57606a", "end"))
    for part in range(4):
        at = begin + (end - begin) * part / 3
        x = left + (right - left) * part / 3
        clock = time.strftime("%H:%M:%S", time.gmtime(at))
        drawn.append(text(x, bottom + 14, clock, 10, "#57606a", ("start", "middle", "middle", "end")[part]))
    x_legend = left
    # Some panels have a series for each reason there is: those that were highest are drawn.
    series = sorted(series, key=lambda one: -max(value for _, value in one[1]))
    for number, (name, points) in enumerate(series[:8]):
        colour = COLOURS[number % len(COLOURS)]
        places = [
            (left + (right - left) * (at - begin) / (end - begin), bottom - (bottom - top) * (value - least) / (most - least))
            for at, value in points
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(places) == 1:
            drawn.append(f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="2.5" fill="{colour}"/>')
        room = 24 + 6.4 * len(name)
        if x_legend + room < right:
            drawn.append(f'<rect x="{x_legend:.0f}" y="{height - 22}" width="12" height="4" fill="{colour}"/>')
            drawn.append(text(x_legend + 16, height - 16, name, 11, "#57606a"))
            x_legend += room
    return drawn


def draw(prometheus, dashboard, minutes):
    end = time.time()
    begin = end - minutes * 60
    drawn, empty, lowest = [], [], 0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        x, y = place["x"] * COLUMN, place["y"] * ROW
        width, height = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
        lowest = max(lowest, y + height)
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
        series = series_of(prometheus, panel, begin, end)
        if not series:
            empty.append(panel["title"])
        inner = stat(series, unit, width, height) if panel["type"] == "stat" else graph(series, unit, width, height, begin, end)
        drawn.append(f'<g transform="translate({x + GAP},{y + GAP})">')
        drawn.append(f'<rect width="{width}" height="{height}" rx="4" fill="#ffffff" stroke="#d0d7de"/>')
        drawn.append(text(12, 20, panel["title"], 13, weight="bold"))
        drawn.extend(inner)
        drawn.append("</g>")
    size = (24 * COLUMN + GAP, lowest + 2 * GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" height="{size[1]}" '
        f'font-family="system-ui, sans-serif" role="img"><title>{html.escape(dashboard["title"])}</title>'
        f'<rect width="100%" height="100%" fill="#f6f8fa"/>'
    )
    return "\n".join([head, *drawn, "</svg>\n"]), empty


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    dashboard = json.loads(pathlib.Path(__file__).with_name("dashboard.json").read_text())
    picture, empty = draw(sys.argv[1], dashboard, float(sys.argv[3]) if len(sys.argv) == 4 else 15)
    pathlib.Path(sys.argv[2]).write_text(picture)
    for title in empty:
        print(f"no data: {title}")


main()
