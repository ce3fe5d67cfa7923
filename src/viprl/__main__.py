"""``python -m viprl``: the ``viprl`` command."""

import sys

from viprl.cli import main

sys.exit(main())
