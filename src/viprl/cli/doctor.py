"""``viprl doctor trl|verl``: check an environment for an integration."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("doctor", help="check that an integration can run here")
    parser.add_argument("integration", choices=["trl", "verl"], help="which integration to check")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; status 1 if a check failed."""
    from viprl.integrations import trl_doctor
    from viprl.integrations.findings import report
    from viprl.integrations.verl import doctor as verl_doctor

    findings = (trl_doctor if args.integration == "trl" else verl_doctor).diagnose()
    print(report(findings))
    return 0 if all(finding.ok for finding in findings) else 1
