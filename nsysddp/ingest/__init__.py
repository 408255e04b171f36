"""From nsys exports to a validated Trace: reading, identity, clocks, payloads, attribution and matching."""
