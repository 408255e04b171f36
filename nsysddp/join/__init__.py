"""Where reports meet: ranks, clocks, matched collectives, the run."""
