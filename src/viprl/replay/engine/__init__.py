"""Rules run through worlds: one rule on one run (``run``), its scores (``trace``), many in parallel (``compare``)."""
