"""The only unit conversions: everything inside is integer nanoseconds and bytes, people read ms and GB/s."""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
BYTES_PER_MIB = 1 << 20


def ms(ns: float) -> float:
    """Nanoseconds as milliseconds."""
    return ns / NS_PER_MS


def ns_from_ms(value: float) -> int:
    """Milliseconds as whole nanoseconds (rounded to the nearest)."""
    return round(value * NS_PER_MS)


def ns_from_us(value: float) -> int:
    """Microseconds as whole nanoseconds (rounded to the nearest)."""
    return round(value * NS_PER_US)


def gbps(size_bytes: float, duration_ns: float) -> float:
    """Decimal gigabytes per second; bytes per nanosecond are the same number."""
    return size_bytes / duration_ns
