"""Reads of the metrics app."""

from __future__ import annotations
