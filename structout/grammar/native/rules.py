"""Builds the rules of a grammar while it is parsed."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError
from structout.grammar.native.automaton import Automaton, AutomatonLimits
from structout.grammar.native.captures import CapturedRule
from structout.grammar.native.extension import core, grammar_errors
from structout.grammar.native.json_schema import CompiledSchema

_AUTOMATON_SECONDS = 0.2
_CACHED_EXCLUSIONS = 1 << 8
_LARGEST_BOUND = 1 << 30  # exceeds every limit on nodes
_LAST_TOKEN_ID = (1 << 31) - 2
_MAX_DIGITS = 18  # int() refuses more than 4,300 digits


@dataclass(frozen=True)
class Way:
    """A continuation of the text after free text, such as a tag after its trigger.

    Attributes:
        part: the expression that follows.
        returns: whether free text goes on after it, from its start.
    """

    part: int
    returns: bool = False


class RuleSet:
    """The rules of a grammar, held by the C++ core.

    Expressions are numbers that the ``add_…`` methods return. A rule may be referred to
    before it is defined.

    Args:
        start: the rule that a whole text matches.
        limits: what the grammar may cost.
        has_lexer: whether rules consist of terminals, which ``add_terminal`` marks and
            a greedy lexer reads, instead of bytes.
        shared: other rules, to whose expressions those of these rules are added. They
            do not see each other's names.
        is_labelled: whether these rules have ``labels``. With ``shared`` they have its
            labels instead, if it has some.
        escaped: where texts stand in a JSON string, the characters that are written as
            escapes there although JSON does not require it. None elsewhere.

    Attributes:
        labels: the names of all rules and of the parts that ``label`` names, by the
            expressions that stand for them. None without labels.
    """

    def __init__(
        self,
        start: str,
        limits: AutomatonLimits,
        *,
        has_lexer: bool = False,
        shared: "RuleSet | None" = None,
        is_labelled: bool = False,
        escaped: str | None = None,
    ):
        self.escaped: str | None = escaped if shared is None else shared.escaped
        if shared is not None:
            self.native: Any = shared.native
        else:
            self.native = core().Rules() if escaped is None else core().Rules.in_json_string(escaped)
        self.labels: dict[int, str] | None = {} if is_labelled else None
        if shared is not None:
            self.labels = shared.labels
        self.start = start
        self.limits = limits
        self.has_lexer = has_lexer
        self.captured: list[CapturedRule] = [] if shared is None else shared.captured
        self.ignores_once = False  # between two terminals, instead of any number of times
        self._ignored: list[int] = []
        self._numbers = itertools.count()
        self._network: Any = None
        self._references: dict[str, int] = {}
        self._defined: set[str] = set()
        self._root = self.reference(start)

    def reference(self, name: str) -> int:
        """The expression that stands for a rule."""
        if name not in self._references:
            reference = self._references[name] = self.native.add_rule(name)
            if self.labels is not None:
                self.labels[reference] = name
        return self._references[name]

    def label(self, name: str, part: int) -> int:
        """Name a part, by a rule of its own, if these rules have labels. The language
        stays the same."""
        if self.labels is None:
            return part
        reference: int = self.native.add_rule(name)
        self.native.define(reference, part)
        self.labels[reference] = name
        return reference

    def unlabel(self, name: str) -> None:
        """Drop the label of a rule, if these rules have labels."""
        if self.labels is not None:
            self.labels.pop(self._references[name], None)

    def check_complete(self, dialect: str, text: str, first_uses: Mapping[str, int]) -> None:
        """Raise ``GrammarError`` unless the start and each rule that is used are
        defined. ``first_uses``: where in ``text`` each is first used."""
        if not self.is_defined(self.start):
            raise GrammarError(f"a {dialect} grammar must have a rule named {self.start}")
        for name in self.undefined_names:
            where = place(text, first_uses[name])
            raise GrammarError(f"{where}: the grammar uses {name}, which it does not define")

    @property
    def undefined_names(self) -> list[str]:
        return [name for name in self._references if name not in self._defined]

    def is_defined(self, name: str) -> bool:
        return name in self._defined

    def new_number(self) -> int:
        """A number for the names of rules that stand for what has none."""
        return next(self._numbers)

    def add_text(self, text: str) -> int:
        return self.native.add_text(text.encode())

    def add_regex(self, pattern: str) -> int:
        """Add a regular expression in the dialect of docs/native.md, without anchors
        and lookahead."""
        with grammar_errors():
            return self.native.add_regex(pattern.encode(errors="surrogatepass"), self.limits.native)

    def add_automaton(self, automaton: Automaton) -> int:
        return self.native.add_automaton(automaton.native)

    def add_free_text(
        self, stops: Mapping[str, Way], excluded: Iterable[str] = (), anywhere: Sequence[Way] = ()
    ) -> int:
        """Add any UTF-8 text up to one of several ends.

        Args:
            stops: texts that end it, each where it first occurs, and what follows. If
                several first occur at the same place, the longest counts.
            excluded: texts that must not occur in front of a stop. A stop may contain
                one.
            anywhere: what may follow any character, and instead of the text.
        """
        ways = [*stops.values(), *anywhere]
        with grammar_errors():
            return self.native.add_free_text(
                [stop.encode() for stop in stops],
                [text.encode() for text in excluded],
                [way.part for way in ways],
                [way.returns for way in ways],
                self.limits.native,
            )

    def json(self, index: CompiledSchema) -> int:
        """Add a text of a JSON schema, enforced and written as in a request of its own.

        Args:
            index: the schema, over the vocabulary that the grammar is compiled for.
        """
        return self.native.add_json(index.native)

    def add_bounded(self, automaton: Any, minimum: int, maximum: int | None) -> int:
        """Add the texts of an automaton that have a number of characters in a range.

        Args:
            automaton: a ``BoundedAutomaton`` of the core, over the vocabulary that the
                grammar is compiled for. It does not accept the empty text.
            minimum: characters.
            maximum: characters, or None.
        """
        return self.native.add_bounded(automaton, minimum, maximum)

    def add_grammar(self, index: Any) -> int:
        """Add a text of a grammar that has a lexer of its own, as ``json`` adds values.
        It is not empty, and ends wherever the rules go on.

        Args:
            index: the grammar, a ``CompiledGrammar`` of the core over the vocabulary
                that these rules are compiled for.

        Raises:
            GrammarError: the grammar reads tokens by their ids, or counts them.
        """
        with grammar_errors("the grammar"):
            return self.native.add_grammar(index)

    def token(self, ids: Iterable[int | tuple[int, int]]) -> int:
        """Add one token out of some, read by its id, whatever its bytes are.

        Args:
            ids: of the tokens; a pair stands for all ids from one to the other.

        Raises:
            ValueError: an id is no number in ``[0, 2**31 - 2]``, or a range ends before
                it begins.
        """
        ranges = [(each, each) if isinstance(each, int) else each for each in ids]
        bad = [each for each in ranges if not 0 <= each[0] <= each[1] <= _LAST_TOKEN_ID]
        if bad:
            raise ValueError(f"expected token ids and ranges of them in [0, {_LAST_TOKEN_ID}], got {bad[0]}")
        return self.native.add_tokens(ranges)

    def add_repetition(self, part: int, minimum: int, maximum: int | None) -> int:
        maximum = maximum if maximum is None else min(maximum, _LARGEST_BOUND)
        return self.native.add_repetition(part, min(minimum, _LARGEST_BOUND), maximum)

    def add_sequence(self, parts: Sequence[int]) -> int:
        return parts[0] if len(parts) == 1 else self.native.add_sequence(parts)

    def add_alternatives(self, sequences: Sequence[Sequence[int]]) -> int:
        parts = [self.add_sequence(parts) for parts in sequences]
        return parts[0] if len(parts) == 1 else self.native.add_alternatives(parts)

    def define(self, name: str, sequences: Sequence[Sequence[int]]) -> None:
        """Define a rule by its alternatives, each a list of expressions.

        Alternatives that begin with the rule itself repeat what follows there:
        ``a ::= a "x" | "y"`` becomes ``a ::= "y" "x"*``.
        """
        reference = self.reference(name)
        self._defined.add(name)
        others = [parts for parts in sequences if list(parts[:1]) != [reference]]
        endings = [parts[1:] for parts in sequences if list(parts[:1]) == [reference]]
        body = self.add_alternatives(others)
        if any(endings):
            body = self.add_sequence([body, self.add_repetition(self.add_alternatives(endings), 0, None)])
        self.native.define(reference, body)

    def ignore(self, sequences: Sequence[Sequence[int]]) -> None:
        """Allow texts of the alternatives between two terminals."""
        self._ignored.append(self.add_alternatives(sequences))

    def allow_ignored_at_start(self) -> None:
        """Allow what may stand between two terminals also in front of the first."""
        if self._ignored:
            ignored = self.native.add_terminal(self.add_alternatives([[part] for part in self._ignored]))
            self._root = self.add_sequence([self.add_repetition(ignored, 0, None), self._root])

    def network(self, vocabulary_trie: Any = None) -> Any:
        """The automata of all rules, a ``Network`` of the core.

        Args:
            vocabulary_trie: whose bytes texts may consist of. Default: all bytes. The
                rules must be complete then.

        Raises:
            GrammarError: the rules use what is not supported.
            GrammarLimitError: the automata would exceed one of the limits.
        """
        if vocabulary_trie is None and self._network is not None:
            return self._network
        ignored = self._ignored if self.has_lexer else None
        with grammar_errors("the grammar"):
            network = core().Network(
                self.native, self._root, ignored, self.limits.native, vocabulary_trie, self.ignores_once
            )
        if vocabulary_trie is None:
            self._network = network
        return network

    def capture_parser(self) -> Any:
        """A ``CaptureParser`` of the core, which finds the texts of ``captured``.

        Raises:
            GrammarLimitError: the rules would exceed one of the limits.
        """
        return self._parser_of([rule.reference for rule in self.captured])

    def label_parser(self) -> Any:
        """A ``CaptureParser`` of the core, which finds the texts of ``labels``."""
        return self._parser_of(list(self.labels or ()))

    def _parser_of(self, references: list[int]) -> Any:
        ignored = self._ignored if self.has_lexer else None
        with grammar_errors("the grammar"):
            return core().CaptureParser(
                self.native, self._root, ignored, self.ignores_once, references, self.limits.native
            )

    def automaton(self) -> Automaton | None:
        """The language as an automaton. None if the rules refer to themselves, except
        at their ends, or if the automaton would exceed one of the limits, or take more
        than 0.2 s. None if the grammar captures texts of rules: an automaton knows no
        rules."""
        if self.captured:
            return None
        limits = replace(self.limits, seconds=min(self.limits.seconds, _AUTOMATON_SECONDS)).native
        try:
            if self.has_lexer:
                native = self.network().as_automaton(limits)
            else:
                self.native.check_recursion(self._root)
                native = self.native.compile(self._root, limits)
        except (core().PatternError, core().LimitError):
            return None
        return None if native is None else Automaton(native)


@lru_cache(_CACHED_EXCLUSIONS)
def texts_without(excluded: tuple[str, ...], limits: AutomatonLimits) -> Automaton:
    """All texts that contain none of some texts."""
    rules = RuleSet("text", limits)
    rules.define("text", [[rules.add_free_text({}, excluded, [Way(rules.add_text(""))])]])
    with grammar_errors():
        return Automaton(rules.native.compile(rules.reference("text"), limits.native))


class OpenGroups:
    """The groups of a rule that the parser has not closed yet.

    Args:
        rules: where the expressions are added.
    """

    def __init__(self, rules: RuleSet):
        self._rules = rules
        self._groups: list[list[list[int]]] = [[[]]]
        # For each group, the other operands of an intersection with the last sequence.
        self._operands: list[list[int]] = [[]]
        self._dropped: list[bool] = [False]  # for each group, whether its last sequence is left out

    @property
    def alternatives(self) -> list[list[int]]:
        """The alternatives of the innermost group so far."""
        return self._groups[-1]

    @property
    def depth(self) -> int:
        """The number of open groups, without the rule itself."""
        return len(self._groups) - 1

    def open(self) -> None:
        self._groups.append([[]])
        self._operands.append([])
        self._dropped.append(False)
        limit = self._rules.limits.nesting
        if self.depth > limit:
            raise GrammarLimitError("nesting", self.depth, limit)

    def close(self) -> int:
        """Close the innermost group and return its expression."""
        return self._rules.add_alternatives(self.close_alternatives())

    def close_alternatives(self) -> list[list[int]]:
        """Close the innermost group and return its alternatives."""
        self._end_alternative()
        self._operands.pop()
        self._dropped.pop()
        return self._groups.pop()

    def add(self, part: int) -> None:
        self.alternatives[-1].append(part)

    def begin_alternative(self) -> None:
        self._end_alternative()
        self.alternatives.append([])

    def drop_alternative(self) -> None:
        """Leave out the present alternative."""
        self._dropped[-1] = True

    def intersect(self) -> None:
        """Begin another operand of an intersection, in the same alternative."""
        self._operands[-1].append(self._rules.add_sequence(self.alternatives[-1]))
        self.alternatives[-1] = []

    def _end_alternative(self) -> None:
        if self._operands[-1]:
            operands = [*self._operands[-1], self._rules.add_sequence(self.alternatives[-1])]
            self.alternatives[-1] = [self._rules.native.add_intersection(operands)]
            self._operands[-1] = []
        if self._dropped[-1]:
            self.alternatives.pop()
            self._dropped[-1] = False

    def repeat_last(self, minimum: int, maximum: int | None) -> None:
        """Replace the last expression by its repetition."""
        sequence = self.alternatives[-1]
        sequence[-1] = self._rules.add_repetition(sequence[-1], minimum, maximum)


REPETITIONS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def bounded_int(digits: str) -> int:
    """Convert digits to a number. A number with too many digits for ``int`` becomes one
    that exceeds every limit."""
    return int(digits) if len(digits) <= _MAX_DIGITS else 1 << 62


def place(text: str, offset: int) -> str:
    """The line and column of a character, for a message."""
    line_start = text.rfind("\n", 0, offset) + 1
    return f"line {text.count(chr(10), 0, offset) + 1}, column {offset - line_start + 1}"


@contextmanager
def errors_placed(text: str, offset: int) -> Iterator[None]:
    """Give errors the line and column of a part, except those of limits."""
    try:
        yield
    except GrammarLimitError:
        raise
    except GrammarError as error:
        raise GrammarError(f"{place(text, offset)}: {error}", kind=error.kind) from None


def malformed_error(text: str, offset: int, problem: str) -> GrammarError:
    return GrammarError(f"{place(text, offset)}: the grammar does not parse: {problem}")


def unsupported_error(text: str, offset: int, feature: str) -> GrammarError:
    message = f"{place(text, offset)}: {feature} not supported"
    return GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
