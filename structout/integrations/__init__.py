"""Adapters for engines. Nothing in structout imports them."""
