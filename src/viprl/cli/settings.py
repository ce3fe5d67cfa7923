"""AllocationSettings as options of a command: ``min_group_size`` is ``--min-group-size``."""

from __future__ import annotations

import argparse
from typing import Any

from viprl.settings import AllocationSettings, settings_fields

_LISTS = {"side_information": str, "reward_values": float}


def add_settings(parser: argparse.ArgumentParser, names: tuple[str, ...], **defaults: Any) -> None:
    """Add these settings as options, with the settings' own help."""
    group = parser.add_argument_group("allocation")
    for item in settings_fields():
        if item.name not in names:
            continue
        default = defaults.get(item.name, item.default)
        option: dict[str, Any] = {"default": default, "help": str(item.metadata["help"]).replace("%", "%%")}
        if item.type == "bool":
            option["action"] = argparse.BooleanOptionalAction
        elif item.name in _LISTS:
            option |= {"nargs": "+", "type": _LISTS[item.name], "metavar": item.name.upper()}
        else:
            option["type"] = {"int": int, "float": float}.get(str(item.type).split(" ")[0], str)
        group.add_argument("--" + item.name.replace("_", "-"), **option)


def settings_from(args: argparse.Namespace, names: tuple[str, ...], **known: Any) -> AllocationSettings:
    """The settings that a user gave.

    Raises:
        ConfigurationError: as AllocationSettings.
    """
    return AllocationSettings(**{name: getattr(args, name) for name in names}, **known)
