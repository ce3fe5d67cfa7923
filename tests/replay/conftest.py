"""Settings of the replay tests."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.append(str(Path(__file__).resolve().parent))  # for the helper module `browser`
settings.register_profile("no-deadline", deadline=None)  # a busy machine makes single examples slow
settings.load_profile("no-deadline")
