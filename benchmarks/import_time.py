"""Time of `import viprl` beside that of `import numpy, scipy.special`, each in a process of its own.

    python benchmarks/import_time.py [--repeats 15] [--out benchmarks/results]

The median processor time of the import statement, with warm file caches; the two are measured in turn, so that a busy
machine slows both alike. Prints a table and writes it as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import scipy

STATEMENTS = ("import numpy, scipy.special", "import viprl")


def seconds(statement: str) -> tuple[float, int]:
    """(processor time in seconds, modules loaded) of one statement in a fresh interpreter."""
    code = f"import sys, time; t = time.process_time(); {statement}; print(time.process_time() - t, len(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    time, modules = done.stdout.split()
    return float(time), int(modules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    found: dict[str, list[tuple[float, int]]] = {statement: [] for statement in STATEMENTS}
    for _ in range(args.repeats + 1):
        for statement in STATEMENTS:
            found[statement].append(seconds(statement))
    rows = []
    for statement, values in found.items():
        times = [time for time, _ in values[1:]]  # the first reads the files
        rows.append({"statement": statement, "median_s": statistics.median(times), "modules": values[0][1]})
        print(f"{statement:<30} {rows[-1]['median_s']:.3f} s  {rows[-1]['modules']} modules")
    ratio = rows[1]["median_s"] / rows[0]["median_s"]
    print(f"ratio {ratio:.2f}")
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "repeats": args.repeats,
        "rows": rows,
        "ratio": ratio,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "import_time.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
