"""YAML as people write it: ``1e-4`` is a number here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from viprl.errors import ConfigurationError


def read_mapping(path: str | Path) -> dict[str, Any]:
    """The keys and values of a configuration file.

    Raises:
        ConfigurationError: unreadable, no YAML, or no mapping.
    """
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"the configuration must be a readable file, but got {str(path)!r}: {error}"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} must be YAML, but: {error}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path} must hold a mapping of keys to values, but holds {type(values).__name__}")
    _repair_floats(values)
    return values


def parse_value(text: str) -> Any:
    """The value of an override."""
    import yaml

    try:
        holder = {"value": yaml.safe_load(text) if text else ""}
    except yaml.YAMLError as error:
        raise ConfigurationError(f"the value of an override must be YAML, but got {text!r}") from error
    _repair_floats(holder)
    return holder["value"]


def _repair_floats(values: Any) -> None:
    """YAML 1.1 reads 1e-4 (no dot) as a string; make such strings numbers, in place."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in list(items):
        if isinstance(value, dict | list):
            _repair_floats(value)
        elif isinstance(value, str) and value[:1] in "+-.0123456789" and "e" in value.lower():
            try:
                values[key] = float(value)
            except ValueError:
                continue
