"""The parts of a ``StreamAllocator``: price, unit prices, decisions, tickets, and blocks that are learnt."""
