"""Settings of the evaluation tests."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)  # a busy machine makes single examples slow
settings.load_profile("no-deadline")
