"""Resolves the outside references of grammars: JSON schemas, and tokens by their names
and ids."""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.json_schema import DEFAULT_FORM, CompiledSchema, TextForm
from structout.grammar.native.rules import RuleSet, bounded_int
from structout.grammar.vocabulary import Vocabulary

_RANGE = re.compile(r"[ ]*([0-9]+)[ ]*(?:-[ ]*([0-9]+)[ ]*)?")
_SHOWN_NAMES = 12
_ANY_SIZE = 1 << 30  # of a vocabulary that is not known


class GrammarContext:
    """Adds references to the rules of a grammar: to schemas, tokens and other grammars.

    Args:
        vocabulary: the token ids of the model. Without it a grammar may refer to
            nothing.
        form: how JSON is written.
        knows_tokens: whether the names and ids of tokens are those of the vocabulary.
            Otherwise any stands for some token: a grammar can be checked only.
        is_labelled: whether the rules of a grammar keep ``RuleSet.labels``.
    """

    def __init__(
        self,
        vocabulary: Vocabulary | None = None,
        form: TextForm = DEFAULT_FORM,
        *,
        knows_tokens: bool = True,
        is_labelled: bool = False,
    ):
        self.is_labelled = is_labelled
        self._vocabulary = vocabulary
        self._form = form
        self._knows_tokens = knows_tokens

    def add_schema(self, rules: RuleSet, schema: str) -> int:
        """Add a text of a JSON schema.

        Raises:
            GrammarError: the schema is malformed, unsupported or allows no text.
            GrammarLimitError: it would exceed one of the limits of the rules.
        """
        return rules.json(CompiledSchema(schema, self._known_vocabulary, self._form, rules.limits))

    def add_grammar(self, rules: RuleSet, inside: RuleSet) -> int:
        """Add a text of a grammar with a lexer and ``%ignore`` of its own.

        Args:
            inside: the rules of the grammar.

        Raises:
            GrammarError: the grammar allows no text, or asks for what it can have only
                where nothing is around it.
            GrammarLimitError: it exceeds one of its limits.
        """
        if inside.captured:
            message = "captures are not supported in a grammar with a lexer that is inside of another"
            raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
        index = CompiledGrammar(inside, self._known_vocabulary)
        if index.is_empty:
            raise GrammarError("the grammar inside allows no text", kind=GrammarErrorKind.IMPOSSIBLE)
        part = rules.add_grammar(index.native)
        return rules.add_repetition(part, 0, 1) if inside.network().matches_empty else part

    def add_token(self, rules: RuleSet, written: str, *, is_negated: bool = False) -> int:
        """Add a token: ``<name>`` of a special one, or one of ``<[1,5-7]>``, of all but
        ``<[^1,5-7]>`` or of all ``<[*]>``. All are those that do not end a text.

        Args:
            is_negated: any other token in its place.

        Raises:
            GrammarError: there is no such token.
        """
        if written == "<[*]>":
            ranges, is_negated = [], not is_negated
        elif written.startswith("<["):
            ranges, is_negated = [*self._ranges(written)], is_negated != written.startswith("<[^")
        else:
            token = self._id_of(written)
            ranges = [(token, token)]
        return rules.token(self._others(ranges) if is_negated else ranges)

    def token_of(self, token: int | str) -> int:
        """Return the id of a token, given its id, its name or its text.

        Raises:
            GrammarError: there is no such token.
        """
        if not self._knows_tokens:
            return 0
        vocabulary = self._known_vocabulary
        if isinstance(token, int):
            if not 0 <= token < self._size:
                raise GrammarError(f"there is no token {token}: ids are below {self._size}")
            return token
        if token not in dict(vocabulary.special_tokens) and token.encode() in vocabulary.token_bytes:
            return vocabulary.token_bytes.index(token.encode())
        return self._id_of(token)

    def other_tokens(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        """All tokens but some, and but those that end a text, as ranges of ids."""
        return self._others([(each, each) for each in ids])

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """The tokens that a tokenizer finds in a text before it splits the rest, by
        their names."""
        if self._vocabulary is None or not self._knows_tokens:
            return {}
        return {name: i for name, i in self._vocabulary.special_tokens if name}

    @cached_property
    def markers(self) -> dict[str, int]:
        """The added tokens that have no text, by name."""
        return {name: i for name, i in self.added_tokens.items() if not self._known_vocabulary.token_bytes[i]}

    @property
    def _known_vocabulary(self) -> Vocabulary:
        if self._vocabulary is None:
            message = "a schema or a token in a grammar needs the vocabulary of the model, which is not known here"
            raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
        return self._vocabulary

    @property
    def _size(self) -> int:
        return self._known_vocabulary.size if self._knows_tokens else _ANY_SIZE

    def _ranges(self, written: str) -> Iterator[tuple[int, int]]:
        inside = written[2:-2].removeprefix("^") if written.endswith("]>") else ""
        for part in inside.split(","):
            match = _RANGE.fullmatch(part)
            if match is None:
                raise GrammarError(f"{written} is no list of token ids such as <[5,7-9]>, <[^5]> or <[*]>")
            first, last = bounded_int(match[1]), bounded_int(match[2] or match[1])
            if not first <= last < self._size:
                raise GrammarError(f"{written} has ids that are out of order, or not below {self._size}")
            yield first, last

    def _id_of(self, name: str) -> int:
        ids = dict(self._known_vocabulary.special_tokens)
        if not self._knows_tokens:
            return 0
        if name not in ids:
            shown = ", ".join([*ids][:_SHOWN_NAMES]) or "none"
            more = ", ..." if len(ids) > _SHOWN_NAMES else ""
            raise GrammarError(f"the tokenizer has no special token {name}; it has {shown}{more}")
        return ids[name]

    def _others(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """All ids that do not end a text and are in none of the ranges, as ranges."""
        stops = [(stop, stop) for stop in self._known_vocabulary.stop_token_ids]
        others, begin = [], 0
        for first, last in sorted([*ranges, *stops, (self._size, self._size)]):
            if begin < first:
                others.append((begin, first - 1))
            begin = max(begin, last + 1)
        return others


NO_CONTEXT = GrammarContext()
