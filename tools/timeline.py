#!/usr/bin/env python3
"""Draws some steps of a trace (`tandem train --trace FILE`) as a picture for a page: what ran beside what, by the devices' clocks.

    python3 tools/timeline.py FILE FIRST_STEP STEPS "title" > picture.svg
"""

import gzip
import json
import sys

TRACKS = [
    ("model role", "steps", "work", "the step at work", "#4878a8"),
    ("data role", "upload", "upload", "upload", "#7a9a3a"),
    ("data role", "features", "features", "features", "#c08a2a"),
    ("links", "transfer to the host", "transfer", "a batch to the host", "#b0503c"),
    ("links", "transfer from the host", "transfer", "a batch from the host", "#8a5a9c"),
]
LEFT, WIDTH, TOP, ROW, HEIGHT = 170, 714, 36, 38, 26


def slices(trace, group, track, name):
    """(began, length) in microseconds and the step, of one track."""
    process = {e["pid"] for e in trace if e["name"] == "process_name" and e["args"]["name"].startswith(group)}
    threads = {
        (e["pid"], e["tid"])
        for e in trace
        if e["name"] == "thread_name" and e["pid"] in process and e["args"]["name"] == track
    }
    on_it = (e for e in trace if e["ph"] == "X" and (e["pid"], e["tid"]) in threads and e["name"] == name)
    return [(e["ts"], e["dur"], e["args"].get("step")) for e in on_it]


def main():
    file, first, steps, title = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with (gzip.open if file.endswith(".gz") else open)(file, "rt") as given:
        trace = json.load(given)
    works = sorted(slices(trace, *TRACKS[0][:3]))[first - 1 : first + steps]
    begin, end = works[0][0] - 100, works[-1][0]

    def x(us):
        return LEFT + WIDTH * (us - begin) / (end - begin)

    height = TOP + ROW * len(TRACKS) + 38
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="13">')
    print(f'<rect width="900" height="{height}" fill="white"/>\n<text x="{LEFT}" y="20">{title}</text>')
    for row, (group, track, name, label, colour) in enumerate(TRACKS):
        y = TOP + ROW * row
        print(f'<text x="{LEFT - 10}" y="{y + 17}" text-anchor="end">{label}</text>', end="")
        print(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="#f1f1f1"/>')
        for began, length, step in slices(trace, group, track, name):
            if began + length <= begin or began >= end:
                continue
            left, right = x(max(began, begin)), x(min(began + length, end))
            width = right - left
            print(f'<rect x="{left:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{HEIGHT}" fill="{colour}"/>')
            if row == 0 and width > 120:
                print(f'<text x="{left + 6:.1f}" y="{y + 17}" fill="white">step {step}: {length / 1000:.2f} ms</text>')
    y = TOP + ROW * len(TRACKS)
    print(f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + WIDTH}" y2="{y}" stroke="#888"/>')
    for ms in range(int((end - begin) / 1000) + 1):
        at = x(begin + 1000 * ms)
        print(f'<line x1="{at:.1f}" y1="{y}" x2="{at:.1f}" y2="{y + 5}" stroke="#888"/>', end="")
        print(f'<text x="{at:.1f}" y="{y + 19}" text-anchor="middle" font-size="11">{ms} ms</text>')
    print("</svg>")


if __name__ == "__main__":
    main()
