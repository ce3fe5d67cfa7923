"""``python -m viprl.cli``."""

from viprl.cli import main

raise SystemExit(main())
