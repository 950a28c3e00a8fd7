"""Masks of tokens: their bits, the message of a step, and what the device holds."""
