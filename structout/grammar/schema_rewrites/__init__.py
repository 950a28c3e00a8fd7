"""Rewrites JSON schemas into equivalent ones that engines enforce."""
