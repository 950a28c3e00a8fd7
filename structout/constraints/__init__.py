"""What a request asks for: its constraint, the schemas, types and tools in it, and the
limits on it. Nothing here knows an engine."""
