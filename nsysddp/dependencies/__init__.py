"""Recorded edges: queues, host lines, the dependency graph, its replay."""
