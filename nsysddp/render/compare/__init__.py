"""A comparison for people: the verdict in a sentence, tables, and a picture with intervals."""

from __future__ import annotations
