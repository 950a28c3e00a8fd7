"""Tools that a model may call: their schemas, the notations of calls, and calls read
back."""
