"""Grammars with recursion, or with a lexer, over a vocabulary."""

from structout.grammar.native.captures import CaptureReader
from structout.grammar.native.extension import core, grammar_errors
from structout.grammar.native.rules import RuleSet
from structout.grammar.vocabulary import Vocabulary


class CompiledGrammar:
    """A grammar with recursion over the tokens of a vocabulary. Threads may share it.

    A text's configuration is the set of all stacks of rules that it may have led to, in
    a graph-structured stack (Tomita). A mask is the union of partial masks: the tokens
    that one state of a rule allows, whatever lies below it on the stack. A partial mask
    is computed once, however deep the stacks are.

    Args:
        rules: of the grammar.
        vocabulary: the token ids of the model.

    Raises:
        GrammarError: the rules use what is not supported.
        GrammarLimitError: they exceed one of their limits.
    """

    def __init__(self, rules: RuleSet, vocabulary: Vocabulary):
        trie = vocabulary.trie
        network = rules.network() if trie.has_all_bytes else rules.network(trie)
        with grammar_errors("the grammar"):
            self.native = core().CompiledGrammar(network, rules.limits.native, trie)
        self.capture_reader = CaptureReader(rules, vocabulary) if rules.captured else None

    @property
    def is_empty(self) -> bool:
        """True if the grammar has no text: none can be finished."""
        with grammar_errors("the grammar"):
            return self.native.is_empty

    @property
    def num_states(self) -> int:
        """The number of positions that texts have had, since states were last freed."""
        return self.native.num_states

    @property
    def num_masks(self) -> int:
        """The number of different masks so far, partial ones included."""
        return self.native.num_masks

    @property
    def memory_bytes(self) -> int:
        """Memory of all states and masks, without the trie of the vocabulary. States
        that texts have made are freed when they exceed 8 MB."""
        return self.native.memory_bytes

    def matches(self, text: str | bytes) -> bool:
        """True if the text is a complete one of the grammar.

        Raises:
            GrammarLimitError: that takes more than the limits.
        """
        with grammar_errors("the grammar"):
            return self.native.matches(text.encode() if isinstance(text, str) else text)
