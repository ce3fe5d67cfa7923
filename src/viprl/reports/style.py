"""Colours of pages and pictures, in one place: light, dark and print; series stay apart without colour vision."""

from __future__ import annotations

from importlib import resources

LIGHT = {
    "page": "#ffffff", "ink": "#1b1f24", "soft": "#57606a", "rule": "#d8dee4", "panel": "#f6f8fa",
    "good": "#116329", "bad": "#a40e26", "even": "#57606a",
    "c0": "#0b62d6", "c1": "#b35900", "c2": "#0f766e", "c3": "#7c3aed", "c4": "#b4276b", "c5": "#6b5d00",
    "other": "#b6bec7", "share": "#e3e8ee",
    "h0": "#e3eef9", "h1": "#c3daee", "h2": "#9ac3e3", "h3": "#68a7d3", "h4": "#3b89bf", "h5": "#1c659e",
    "h6": "#0a3f73",
}  # fmt: skip
DARK = {
    "page": "#14181d", "ink": "#e6e9ed", "soft": "#a2abb5", "rule": "#363d46", "panel": "#1c2229",
    "good": "#5fd38a", "bad": "#ff8d8d", "even": "#a2abb5",
    "c0": "#6cb0ff", "c1": "#f2a65a", "c2": "#4fd1bd", "c3": "#bfa3ff", "c4": "#ff8fc2", "c5": "#d9c74f",
    "other": "#4b5561", "share": "#2a323b",
    "h0": "#173650", "h1": "#1c4c70", "h2": "#246796", "h3": "#3584b9", "h4": "#5aa4d4", "h5": "#8ec5e7",
    "h6": "#cbe5f7",
}  # fmt: skip
PRINT = LIGHT | {"ink": "#000000", "soft": "#444444", "rule": "#bbbbbb", "other": "#bbbbbb", "share": "#e6e6e6"}
SERIES = 6  # colours c0 to c5
HEAT = 7  # colours h0 to h6, faint to strong
DASHES = ((), (9, 3), (3, 3), (9, 3, 2, 3), (14, 4), (6, 2, 1, 2))  # of the series, in pixels; () is a whole line


def series(index: int) -> str:
    """css class of the ``index``-th series; colours come round again after six."""
    return f"c{index % SERIES}"


def style_sheet() -> str:
    """The style sheet of a page."""
    dashes = {i: " ".join(map(str, dash)) for i, dash in enumerate(DASHES) if dash}
    rules = "".join(f".line.c{i} {{ stroke-dasharray: {dash}; }}\n" for i, dash in dashes.items())
    rules += "".join(f".c{i} {{ stroke: var(--c{i}); }} .dot.c{i} {{ fill: var(--c{i}); }}\n" for i in range(SERIES))
    rules += "".join(f".h{i} {{ fill: var(--h{i}); background: var(--h{i}); }}\n" for i in range(HEAT))
    return (
        f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
        f"@media print {{ :root {{ color-scheme: light; {_variables(PRINT)} }} }}\n{rules}"
        + (resources.files("viprl.reports") / "style.css").read_text(encoding="utf-8")
    )


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
