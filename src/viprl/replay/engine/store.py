"""Traces on disk: one small .npz each, written under a temporary name and renamed."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path

import numpy as np

from viprl._files import replacing
from viprl.replay.engine.trace import KINDS, LOSSES, STEP_COLUMNS, Trace

FORMAT = 1


def save_trace(path: Path, trace: Trace) -> None:
    """Write a finished trace."""
    arrays = {f"step/{name}": np.asarray(trace.steps[name]) for name in STEP_COLUMNS}
    arrays |= {f"loss/{kind}/{name}": np.asarray(trace.losses[kind][name]) for kind in KINDS for name in LOSSES}
    arrays["reliability"] = trace.reliability
    arrays |= {f"spending/{phase}": values for phase, values in trace.spending.items()}
    header = json.dumps({"format": FORMAT, "rule": trace.rule, "seed": trace.seed, "phases": trace.phases})
    with replacing(path) as file:
        np.savez_compressed(file, header=np.array(header), **arrays)  # type: ignore[arg-type]


def load_trace(path: Path) -> Trace | None:
    """The trace in a file; None where there is no file, or one that is damaged or of another format."""
    try:
        with np.load(path, allow_pickle=False) as data:
            header = json.loads(str(data["header"]))
            if header["format"] != FORMAT:
                return None
            trace = Trace(header["rule"], header["seed"], header["phases"])
            trace.steps = {name: data[f"step/{name}"] for name in STEP_COLUMNS}
            trace.losses = {kind: {name: data[f"loss/{kind}/{name}"] for name in LOSSES} for kind in KINDS}
            trace.reliability = data["reliability"]
            trace.spending = {phase: data[f"spending/{phase}"] for phase in dict.fromkeys(trace.phases)}
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error):
        return None
    trace.finished = True
    return trace
