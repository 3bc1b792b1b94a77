"""Pace against simulated targets: its throughput beside plain decoding and the best fixed gamma in hindsight."""

from __future__ import annotations

SEEDS = range(8)
GAMMAS = (0, 1, 2, 3, 4, 6, 8, 12)
