"""structout's own engine, from constraints to matchers over the tokens of a vocabulary.
csrc/README.md tells how it works."""
