#!/usr/bin/env python3
"""Draws the book's pictures: each .txt beside this file becomes an .svg in docs/src.

    docs/pictures/draw.py           draws them
    docs/pictures/draw.py --check   says which of them are not as drawn

A picture is a list of lines from top to bottom:

    title: TEXT          what a screen reader says first
    desc: TEXT           the whole story in words
    who: A=NAME, B=NAME  the columns
    step: TEXT           a heading over the full width
    A -> B go: TEXT      an arrow; the word is go, no, plain or back
    at A: TEXT           what happens in a column; `good` or `bad` before the text colours it
    stall A, wake A      the column's line is dotted between the two
"""

import html
import pathlib
import re
import sys

COLUMN, LEFT, TOP, ROW = 200, 100, 12, 34

STYLE = """
    text { fill: #24292f } .who { font-weight: 600 } .step { font-weight: 600; fill: #57606a }
    .what { font-size: 13px; paint-order: stroke; stroke: #ffffff; stroke-width: 4 } .step { stroke: none }
    .life { stroke: #8c959f; stroke-width: 1.5 } .stall { stroke: #8c959f; stroke-width: 1.5; stroke-dasharray: 2 6 }
    .go { stroke: #1a7f37; stroke-width: 2 } .no { stroke: #cf222e; stroke-width: 2 }
    .plain { stroke: #57606a; stroke-width: 1.5 } .back { stroke: #57606a; stroke-width: 1.5; stroke-dasharray: 5 4 }
    .good { fill: #1a7f37 } .bad { fill: #cf222e } .box { fill: none; stroke: #8c959f } .band { fill: #8c959f; opacity: .15 }
    .paper { fill: #ffffff }
    @media (prefers-color-scheme: dark) {
      text { fill: #c9d1d9 } .step { fill: #8b949e } .good { fill: #3fb950 } .bad { fill: #f85149 } .paper { fill: #0d1117 } .what { stroke: #0d1117 } .step { stroke: none }
      .go { stroke: #3fb950 } .no { stroke: #f85149 } .plain, .back { stroke: #8b949e } .life, .stall, .box { stroke: #6e7681 }
    }
"""


def draw(source):
    """The picture that a description stands for."""
    title = desc = ""
    columns, names, body, lines = {}, [], [], []
    y = TOP + 30
    since, stalled = {}, set()

    def text(x, at, words, kind, anchor="middle"):
        body.append(f'<text class="{kind}" x="{x}" y="{at}" text-anchor="{anchor}">{html.escape(words, quote=False)}</text>')

    def life(who, until):
        kind = "stall" if who in stalled else "life"
        lines.append(f'<path class="{kind}" d="M{columns[who]} {since[who]}V{until}"/>')
        since[who] = until

    for number, line in enumerate(source.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("title: "):
            title = line[7:]
        elif line.startswith("desc: "):
            desc = line[6:]
        elif line.startswith("who: "):
            for at, part in enumerate(line[5:].split(", ")):
                who, name = part.split("=")
                columns[who] = LEFT + at * COLUMN
                since[who] = y
                names.append((columns[who], name))
        elif line.startswith("step: "):
            y += ROW + 6
            width = LEFT * 2 + COLUMN * (len(columns) - 1)
            body.append(f'<rect class="band" x="8" y="{y - 20}" width="{width - 16}" height="26" rx="4"/>')
            text(18, y - 2, line[6:], "step what", "start")
        elif found := re.fullmatch(r"(\w+) -> (\w+) (go|no|plain|back): (.*)", line):
            start, end, kind, words = found.groups()
            y += ROW
            x1, x2 = columns[start], columns[end]
            x2 += -4 if x2 > x1 else 4
            body.append(f'<path class="{kind}" fill="none" marker-end="url(#head)" d="M{x1} {y}H{x2}"/>')
            text((x1 + x2) // 2, y - 7, words, "what bad" if kind == "no" else "what")
        elif found := re.fullmatch(r"at (\w+): (good |bad )?(.*)", line):
            who, colour, words = found.groups()
            y += ROW - 6
            last = columns[who] == max(columns.values())
            x, anchor = (columns[who] - 10, "end") if last else (columns[who] + 10, "start")
            text(x, y, words, f"what {colour or ''}".strip(), anchor)
        elif found := re.fullmatch(r"(stall|wake) (\w+)", line):
            what, who = found.groups()
            life(who, y + 10)
            (stalled.add if what == "stall" else stalled.discard)(who)
        else:
            raise SystemExit(f"line {number} is nothing known: {line}")
    height = y + 30
    for who in columns:
        life(who, height - 10)
    width = LEFT * 2 + COLUMN * (len(columns) - 1)
    heads = [
        f'<rect class="box" x="{x - 62}" y="{TOP}" width="124" height="30" rx="6"/>'
        f'<text class="who" x="{x}" y="{TOP + 20}" text-anchor="middle">{html.escape(name)}</text>'
        for x, name in names
    ]
    parts = "\n  ".join(lines + heads + body)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d" font-family="system-ui, sans-serif" font-size="14">
  <title id="t">{html.escape(title, quote=False)}</title>
  <desc id="d">{html.escape(desc, quote=False)}</desc>
  <style>{STYLE}  </style>
  <defs>
    <marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="context-stroke"/></marker>
  </defs>
  <rect class="paper" width="{width}" height="{height}" rx="8"/>
  {parts}
</svg>
"""


def main():
    here = pathlib.Path(__file__).resolve().parent
    stale = []
    for source in sorted(here.glob("*.txt")):
        target = here.parent / "src" / f"{source.stem}.svg"
        picture = draw(source.read_text())
        if "--check" in sys.argv[1:]:
            if not target.exists() or target.read_text() != picture:
                stale.append(target.name)
        else:
            target.write_text(picture)
    if stale:
        raise SystemExit(f"not as drawn: {', '.join(stale)}; run docs/pictures/draw.py")


main()
