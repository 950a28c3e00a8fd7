"""structout's own engine: regular languages as automata over the tokens of a
vocabulary."""
