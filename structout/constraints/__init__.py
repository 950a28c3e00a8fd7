"""The constraint of a request, the schemas, types and tools in it, and the limits on
it. Nothing here depends on an engine."""
