"""The pictures of a report, as SVG: readable without colour, because every bar and line carries its number and its name.

numbers -> SVG text, to be put into a page as it is. No picture holds text of a document.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")
_GREYS = ("#33567a", "#8fb0cf", "#d9dfe6", "#b98a5a", "#6f8f6b", "#a7a7a7")
_WIDTH = 7.2  # inches; the page scales it
_ROW = 0.34


def parts(counts: Mapping[str, int], unit: str) -> str:
    """One bar of several parts, each with its number in the legend."""
    figure, axes = _figure(1.1)
    left = 0
    for place, (name, count) in enumerate(counts.items()):
        colour, hatch = _GREYS[place % len(_GREYS)], _HATCHES[place % len(_HATCHES)]
        axes.barh([0], [count], left=left, color=colour, hatch=hatch, edgecolor="white", label=f"{name} {count:,}")
        left += count
    axes.set_yticks([])
    axes.set_xlabel(unit)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=4, frameon=False, fontsize=9)
    return _svg(figure, f"parts {unit}")


def bars(counts: Mapping[str, int], unit: str) -> str:
    """A bar for each name, with its number behind it."""
    figure, axes = _figure(0.7 + _ROW * max(1, len(counts)))
    names = list(counts)[::-1]
    drawn = axes.barh(names, [counts[name] for name in names], color=_GREYS[0])
    axes.bar_label(drawn, padding=3, labels=[f" {counts[name]:,}" for name in names])
    axes.set_xlabel(unit)
    axes.margins(x=0.15)
    return _svg(figure, f"bars {unit}")


def times(seconds: Mapping[str, float]) -> str:
    """Stages one behind the other, from where each began to where it ended."""
    figure, axes = _figure(0.7 + _ROW * max(1, len(seconds)))
    begin, names = 0.0, list(seconds)[::-1]
    for name, took in seconds.items():
        axes.barh([names.index(name)], [took], left=begin, color=_GREYS[0])
        axes.text(begin + took, names.index(name), f" {took:,.1f} s", va="center", fontsize=9)
        begin += took
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("seconds since the run began")
    axes.margins(x=0.12)
    return _svg(figure, "times")


def histogram(values: Sequence[int], unit: str) -> str:
    """How often what occurs."""
    figure, axes = _figure(2.2)
    axes.hist(values, bins=min(30, max(1, len(set(values)))), color=_GREYS[0], edgecolor="white")
    axes.set_xlabel(unit)
    axes.set_ylabel("chunks")
    return _svg(figure, f"histogram {unit}")


def intervals(rows: Sequence[tuple[str, float, float, float]], unit: str) -> str:
    """A mean and its interval for each (name, mean, low, high)."""
    figure, axes = _figure(0.7 + _ROW * max(1, len(rows)))
    for place, (_, mean, low, high) in enumerate(reversed(rows)):
        axes.plot([low, high], [place, place], color=_GREYS[0], linewidth=2)
        axes.plot([mean], [place], "o", color=_GREYS[0])
        axes.text(high, place, f"  {mean:.1f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [row[0] for row in reversed(rows)])
    axes.set_xlabel(unit)
    axes.margins(x=0.1, y=0.1)
    return _svg(figure, f"intervals {unit}")


def trend(lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """A small line for each name over the snapshots, `(sequence, value)`, the last value written at its end."""
    from matplotlib.ticker import MaxNLocator

    lines = {name: points for name, points in lines.items() if points}
    figure, _ = _figure(1.25 * max(1, len(lines)), drawn=False)
    for place, (name, points) in enumerate(lines.items()):
        axes = figure.add_subplot(len(lines), 1, place + 1)
        _quiet(axes)
        axes.plot([at for at, _ in points], [value for _, value in points], "o-", color=_GREYS[0], markersize=3)
        axes.annotate(f" {points[-1][1]:,.4g}", points[-1], va="center", fontsize=9)
        axes.set_title(name, loc="left", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(x=0.08, y=0.25)
    figure.supxlabel("snapshot", fontsize=9)
    return _svg(figure, "trend")


def _figure(height: float, drawn: bool = True) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.add_subplot() if drawn else None
    if axes is not None:
        _quiet(axes)
    return figure, axes


def _quiet(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=9)


def _svg(figure: Any, salt: str) -> str:
    import matplotlib

    sink = io.StringIO()
    # Names inside the picture are hashed with the salt, so that several pictures can share a page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif"}):
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    text = sink.getvalue()
    return text[text.index("<svg") :]
