"""Masks of tokens: their layout, the message of a step, and its buffers."""
