"""Parses Lark grammars as llguidance reads them."""

import json
import re

from structout.errors import GrammarError, GrammarLimitError
from structout.grammar.native.automaton import AutomatonLimits
from structout.grammar.native.grammar_context import GrammarContext
from structout.grammar.native.lark_library import COMMON
from structout.grammar.native.lark_parameters import ParameterError, holds, value_of
from structout.grammar.native.lark_tokens import Token, tokens_of
from structout.grammar.native.letter_case import other_forms
from structout.grammar.native.lexeme_options import LexemeOptions
from structout.grammar.native.rules import (
    REPETITIONS,
    OpenGroups,
    RuleSet,
    bounded_int,
    errors_placed,
    malformed_error,
    unsupported_error,
)
from structout.grammar.native.rust_regex import ecma_from_rust
from structout.grammar.native.substrings import add_substrings

START = "start"

_HEX_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)")
_OPTIONS = frozenset(("no_forcing", "allow_initial_skip", "ignore_once"))
_CAPTURE_ATTRIBUTES = frozenset(("capture", "stop_capture"))
_ENDING_ATTRIBUTES = frozenset(("suffix", "stop"))
_NUMBER_ATTRIBUTES = frozenset(("max_tokens", "temperature"))
_LEXEME_ATTRIBUTES = _ENDING_ATTRIBUTES | _NUMBER_ATTRIBUTES | {"lazy"}  # their rules are read as one terminal
_MAX_PRIORITY = 1 << 30
_MAX_TOKENS = (1 << 32) - 2
_MAX_INSTANCES = 20_000  # of rules with parameters


def parse_lark(text: str, limits: AutomatonLimits, context: GrammarContext, *, escaped: str | None = None) -> RuleSet:
    """Parse a grammar of llguidance's Lark dialect.

    Args:
        context: what the grammar may refer to.
        escaped: as in :class:`RuleSet`, for a grammar whose texts stand in a JSON
            string.

    Raises:
        GrammarError: the grammar is malformed or uses what is not supported.
    """
    rules = RuleSet(START, limits, has_lexer=True, is_labelled=context.is_labelled, escaped=escaped)
    _Parser(text, tokens_of(text), rules, context).parse()
    return rules


class _Parser:
    """Parses a grammar, which is all of ``text`` or stands inside of it."""

    def __init__(self, text: str, tokens: list[Token], rules: RuleSet, context: GrammarContext):
        self._text = text
        self._rules = rules
        self._context = context
        self._first_uses: dict[str, int] = {}
        self._literals: dict[str, int] = {}  # terminals, by how they are written
        self._has_conditions = any(token.kind == "condition" for token in tokens)
        self._parametric: dict[str, int] = {}  # rules with a parameter, and the token after it
        self._instances: list[tuple[str, int, Token]] = []  # of them, with a value, and where they are first used
        self._parameter: int | None = None  # of the rule that is parsed
        self._may_begin_ignored = False
        self._tokens = tokens
        self._at = 0

    def parse(self) -> None:
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.kind == "newline":
                self._at += 1
            elif token.kind == "statement":
                self._parse_statement(token)
            else:
                self._parse_rule()
        for name, value, token in self._instances:  # each may add others
            self._parse_instance(name, value, token)
        self._rules.check_complete("Lark", self._text, self._first_uses)
        if self._may_begin_ignored:
            self._rules.allow_ignored_at_start()

    def _take(self, text: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at].text == text:
            self._at += 1
            return True
        return False

    def _expect(self, kind: str, what: str) -> Token:
        if self._at == len(self._tokens) or self._tokens[self._at].kind != kind:
            raise self._malformed(f"expected {what}")
        self._at += 1
        return self._tokens[self._at - 1]

    def _offset(self) -> int:
        """The offset of the next token."""
        return self._tokens[self._at].start if self._at < len(self._tokens) else len(self._text)

    def _malformed(self, problem: str) -> GrammarError:
        return malformed_error(self._text, self._offset(), problem)

    def _unsupported(self, feature: str) -> GrammarError:
        return unsupported_error(self._text, self._offset(), feature)

    def _parse_rule(self) -> None:
        while self._take("?") or self._take("!"):  # only shape the syntax tree
            pass
        start = self._offset()
        name = self._expect("name", "a rule, a terminal or a statement").text
        priority = self._at < len(self._tokens) and self._tokens[self._at].kind == "priority"
        if priority:
            value = self._expect("priority", "").match["priority_value"]
            bounded = max(-_MAX_PRIORITY, min(_MAX_PRIORITY, bounded_int(value)))
            self._rules.native.set_priority(self._rules.reference(name), bounded)
        if self._take("{"):
            raise self._unsupported("templates are")
        if self._at < len(self._tokens) and self._tokens[self._at].kind == "parameter":
            self._skip_parametric_rule(name)
        else:
            self._parse_definition(name, start)

    def _skip_parametric_rule(self, name: str) -> None:
        token = self._expect("parameter", "")
        if token.match["expression"] != "_" or _is_terminal(name):
            raise malformed_error(self._text, token.start, "a rule with a parameter begins with its name and ::_")
        if name in self._parametric or self._rules.is_defined(name):
            raise malformed_error(self._text, token.start, f"{name} is defined twice")
        self._parametric[name] = self._at
        while self._at < len(self._tokens) and self._tokens[self._at].kind != "newline":
            self._at += 1

    def _parse_instance(self, name: str, value: int, use: Token) -> None:
        if name not in self._parametric:
            raise malformed_error(self._text, use.start, f"the grammar has no rule {name}::_")
        self._at, self._parameter = self._parametric[name], value
        self._parse_definition(_instance(name, value), use.start)

    def _parse_definition(self, name: str, start: int) -> None:
        """Parse what comes after the name of a rule, and its parameter."""
        is_terminal = _is_terminal(name)
        if is_terminal and self._take("["):
            raise malformed_error(self._text, start, f"attributes are for rules, whose names have lower case: {name}")
        options = self._parse_attributes(name) if self._take("[") else LexemeOptions()
        if not self._take(":"):
            raise self._malformed(f"expected : after {name}")
        if self._rules.is_defined(name):
            raise malformed_error(self._text, start, f"{name} is defined twice")
        if is_terminal or not options.is_lexeme:
            options.capture(self._rules, name)
            self._rules.define(name, self._parse_alternatives(is_terminal=is_terminal))
            return
        body = self._rules.add_alternatives(self._parse_alternatives(is_terminal=True))
        options.capture(self._rules, name, body)
        self._rules.define(name, options.lexemes(self._rules, body))

    def _parse_attributes(self, rule: str) -> LexemeOptions:
        options = LexemeOptions()
        while not self._take("]"):
            start = self._offset()
            name = self._expect("name", "the name of an attribute").text
            if name not in _LEXEME_ATTRIBUTES | _CAPTURE_ATTRIBUTES:
                raise unsupported_error(self._text, start, f"the attribute {name} of a rule is")
            options.is_lexeme |= name in _LEXEME_ATTRIBUTES
            options.is_lazy |= name == "lazy" or name in _ENDING_ATTRIBUTES
            value = self._attribute_value(name) if self._take("=") else None
            if value is None and name in _ENDING_ATTRIBUTES | _NUMBER_ATTRIBUTES:
                raise self._malformed(f"expected = after {name}")
            if name == "max_tokens":
                if value is None or "." in value.text:
                    raise malformed_error(self._text, start, "max_tokens must be an integer")
                options.max_tokens = min(bounded_int(value.text), _MAX_TOKENS)
            elif name in _CAPTURE_ATTRIBUTES:
                self._set_capture(options, name, value, rule)
            elif name in _ENDING_ATTRIBUTES and value is not None:
                self._set_ending(options, name, value, start)
            self._take(",")
        return options

    def _attribute_value(self, name: str) -> Token:
        if name in _NUMBER_ATTRIBUTES:
            return self._expect("number", f"a number after {name}=")
        if self._at == len(self._tokens) or self._tokens[self._at].kind not in ("text", "regex", "name"):
            raise self._malformed(f"expected a string, a regular expression or a terminal after {name}=")
        self._at += 1
        return self._tokens[self._at - 1]

    def _set_capture(self, options: LexemeOptions, name: str, value: Token | None, rule: str) -> None:
        if value is not None and value.kind != "text":
            raise self._malformed(f"expected a string after {name}=")
        if name == "capture":
            options.capture_name = rule.partition("::")[0] if value is None else self._text_of(value)
        elif value is None:
            raise self._malformed("expected = after stop_capture")
        else:
            options.ending_name = self._text_of(value)

    def _set_ending(self, options: LexemeOptions, name: str, value: Token, start: int) -> None:
        if value.text == '""':  # a token that ends the text would have to be taken back
            raise unsupported_error(self._text, start, f"the attribute {name} without a text is")
        if name == "stop" and value.kind == "text" and value.text.endswith('"'):
            options.stop = self._text_of(value)
        elif name == "stop":  # what is left to the next rule must be known
            raise unsupported_error(self._text, start, "stop= with anything but a string, instead of suffix=, is")
        else:
            self._at -= 1
            options.suffix = self._parse_value(value, is_terminal=True)

    def _parse_statement(self, token: Token) -> None:
        self._at += 1
        match token.text:
            case "%ignore":
                self._rules.ignore(self._parse_alternatives(is_terminal=True))
            case "%import":
                self._parse_import()
            case "%llguidance":
                if not isinstance(token.value, dict):
                    raise self._malformed("expected a JSON object after %llguidance")
                for option, value in token.value.items():
                    if option not in _OPTIONS:
                        raise self._unsupported(f"the option {option} of llguidance is")
                    if not isinstance(value, bool):
                        raise self._malformed(f"the option {option} must be true or false")
                self._may_begin_ignored |= token.value.get("allow_initial_skip", False)
                if token.value.get("ignore_once", False):
                    self._rules.ignores_once = True
            case _:
                raise unsupported_error(self._text, token.start, f"{token.text} is")

    def _parse_import(self) -> None:
        library = self._expect("name", "the name of a library").text
        if library != "common":
            raise self._unsupported(f"the library {library} is")
        if self._take("("):
            while not self._take(")"):
                name = self._expect("name", "the name of a terminal").text
                self._import(name, name)
                self._take(",")
            return
        if not self._take("."):
            raise self._malformed("expected . after common")
        name = self._expect("name", "the name of a terminal").text
        has_alias = self._at < len(self._tokens) and self._tokens[self._at].kind == "alias"
        self._import(name, self._expect("alias", "").match["alias_name"] if has_alias else name)

    def _import(self, name: str, alias: str) -> None:
        if name not in COMMON:
            raise self._malformed(f"the library common has no {name}, only {', '.join(COMMON)}")
        if self._rules.is_defined(alias):
            raise self._malformed(f"{alias} is defined twice")
        self._rules.define(alias, [[self._rules.add_regex(COMMON[name])]])

    def _parse_alternatives(self, *, is_terminal: bool) -> list[list[int]]:
        """Parse what follows the colon of a rule, up to the end of the line."""
        groups = OpenGroups(self._rules)
        closings: list[str] = []
        outer_complements: list[int] = []  # the number of ~ before each open group
        num_complements = 0
        may_repeat = False

        self._skip_false_alternative()

        def add(part: int) -> None:
            nonlocal num_complements, may_repeat
            for _ in range(num_complements):
                part = self._rules.native.add_complement(part)
            groups.add(part)
            num_complements, may_repeat = 0, True

        while self._at < len(self._tokens) and self._tokens[self._at].kind != "newline":
            token = self._tokens[self._at]
            if token.kind in ("text", "regex", "name"):
                add(self._parse_value(token, is_terminal))
                continue
            if token.kind == "condition" and not is_terminal:
                if not self._holds(token):
                    groups.drop_alternative()
                self._at += 1
                may_repeat = False
                continue
            if token.kind == "token" or token.text in ("%json", "%regex", "%lark"):
                add(self._parse_reference(token, is_terminal))
                continue
            if may_repeat and (bounds := self._repetition(token)) is not None:
                groups.repeat_last(*bounds)
                may_repeat = False
            elif token.text in ("(", "["):
                groups.open()
                closings.append(")" if token.text == "(" else "]")
                outer_complements.append(num_complements)
                num_complements, may_repeat = 0, False
                self._at += 1
                self._skip_false_alternative()
                continue
            elif closings and token.text == closings[-1] and not num_complements:
                inside = groups.close()
                num_complements = outer_complements.pop()
                add(inside if closings.pop() == ")" else self._rules.add_repetition(inside, 0, 1))
            elif token.text == "|" and not num_complements:
                groups.begin_alternative()
                may_repeat = False
                self._at += 1
                self._skip_false_alternative()
                continue
            elif token.text in ("&", "~"):
                if not is_terminal:
                    raise self._malformed(f"{token.text} is for terminals only, whose names have upper case")
                if token.text == "~":
                    num_complements += 1
                elif groups.alternatives[-1] and not num_complements:
                    groups.intersect()
                else:
                    raise self._malformed("unexpected &")
                may_repeat = False
            elif token.kind != "alias" or closings:
                raise self._unexpected(token)
            self._at += 1
        if closings or num_complements:
            raise self._malformed(f"expected {closings[-1] if closings else 'a terminal'}")
        return groups.close_alternatives()

    def _skip_false_alternative(self) -> None:
        """Go on at the condition of the alternative that begins here, if that does not
        hold: what stands in front of it may have parameters without an end."""
        depth = 0
        for at in range(self._at, len(self._tokens) if self._has_conditions else 0):
            token = self._tokens[at]
            depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
            if depth < 0 or token.kind == "newline" or (depth == 0 and token.text == "|"):
                return
            if depth == 0 and token.kind == "condition":
                if not self._holds(token):
                    self._at = at
                return

    def _unexpected(self, token: Token) -> GrammarError:
        match token.kind:
            case "statement":
                return self._unsupported(f"{token.text} is")
            case "grammar":
                return self._unsupported(f"the grammar {token.text} is")
        if token.text == "{":
            return self._unsupported("templates are")
        return self._malformed(f"unexpected {token.text}")

    def _repetition(self, token: Token) -> tuple[int, int | None] | None:
        """The bounds that a token stands for, or None if it is no repetition."""
        if token.kind == "sign":
            return REPETITIONS.get(token.text)
        if token.kind == "times":
            low = bounded_int(token.match["low"])
            high: int | None = low if token.match["high"] is None else bounded_int(token.match["high"])
        elif token.kind == "bounds" and (token.match["from"] or token.match["comma"]):
            low = bounded_int(token.match["from"] or "0")
            high = low
            if token.match["comma"] is not None:
                high = bounded_int(token.match["to"]) if token.match["to"] else None
        else:
            return None
        if high is not None and high < low:
            raise self._malformed("the bounds of a repetition are out of order")
        return low, high

    def _parse_reference(self, token: Token, is_terminal: bool) -> int:
        """Parse a token, a grammar, or what stands in JSON."""
        self._at += 1
        if is_terminal and token.text != "%regex":
            raise malformed_error(self._text, token.start, f"{token.text} has no place in a terminal")
        has_own_spelling = token.text == "%json" or token.kind == "token"
        if self._rules.escaped is not None and has_own_spelling:
            raise unsupported_error(self._text, token.start, f"{token.text} in a JSON string is")
        with errors_placed(self._text, token.start):
            if token.text == "%lark":
                return self._parse_grammar_inside(token)
            if token.kind == "token":
                return self._context.add_token(self._rules, token.text)
            if token.text == "%json":
                return self._context.add_schema(self._rules, token.json)
            part = add_substrings(self._rules, token.value)
        return part if is_terminal else self._rules.native.add_terminal(part)

    def _parse_grammar_inside(self, token: Token) -> int:
        """Parse the grammar of ``%lark``: its rules become rules of this one, unless
        either ignores something, which has no place in the other."""
        has_own_lexer = _ignores_something(self._tokens) or _ignores_something(token.value)
        if has_own_lexer and self._rules.escaped is not None:
            raise unsupported_error(self._text, token.start, "%lark beside %ignore in a JSON string is")
        shared = None if has_own_lexer else self._rules
        rules = RuleSet(START, self._rules.limits, has_lexer=True, shared=shared)
        _Parser(self._text, token.value, rules, self._context).parse()
        return self._context.add_grammar(self._rules, rules) if has_own_lexer else rules.reference(START)

    def _parse_value(self, token: Token, is_terminal: bool) -> int:
        """Parse a string, a range, a regular expression or a name."""
        self._at += 1
        if token.kind == "name" and not _is_terminal(token.text):
            if is_terminal:
                raise malformed_error(self._text, token.start, f"the terminal uses the rule {token.text}")
            self._first_uses.setdefault(token.text, token.start)
            if self._at < len(self._tokens) and self._tokens[self._at].kind == "parameter":
                return self._instance_of(token)
            return self._rules.reference(token.text)
        match token.kind:
            case "name":
                self._first_uses.setdefault(token.text, token.start)
                part = self._rules.reference(token.text)
            case "regex":
                part = self._parse_regex(token)
            case _:
                is_range = self._at < len(self._tokens) and self._tokens[self._at].text == ".."
                if is_terminal or is_range or token.text == '""':
                    part = self._parse_text(token)
                else:
                    return self._literal(token)
        if is_terminal or token.text == '""':
            return part
        terminal = self._rules.native.add_terminal(part)
        return self._rules.label(token.text, terminal) if token.kind == "name" else terminal

    def _literal(self, token: Token) -> int:
        """A terminal, the same one wherever it is written alike."""
        known = self._literals.get(token.text)
        if known is None:
            known = self._literals[token.text] = self._rules.native.add_terminal(self._parse_text(token))
        return known

    def _instance_of(self, rule: Token) -> int:
        token = self._expect("parameter", "")
        try:
            value = value_of(token.match["expression"], self._parameter)
        except ParameterError as error:
            raise malformed_error(self._text, token.start, str(error)) from None
        name = _instance(rule.text, value)
        if name not in self._first_uses:
            self._first_uses[name] = rule.start
            self._instances.append((rule.text, value, rule))
            if len(self._instances) > _MAX_INSTANCES:
                raise GrammarLimitError("rule_parameters", len(self._instances), _MAX_INSTANCES)
        return self._rules.reference(name)

    def _holds(self, token: Token) -> bool:
        try:
            return holds(token.match["tested"], self._parameter)
        except ParameterError as error:
            raise malformed_error(self._text, token.start, str(error)) from None

    def _parse_regex(self, token: Token) -> int:
        with errors_placed(self._text, token.start):
            return self._rules.add_regex(ecma_from_rust(token.match["pattern"], token.match["flags"]))

    def _parse_text(self, token: Token) -> int:
        text = self._text_of(token)
        if self._take(".."):
            last = self._text_of(self._expect("text", "a string"))
            if len(text) != 1 or len(last) != 1 or text > last:
                raise malformed_error(self._text, token.start, "a range needs two characters in their order")
            return self._rules.native.add_characters([(ord(text), ord(last))], False)
        if not token.text.endswith("i"):
            return self._rules.add_text(text)
        return self._rules.add_sequence(
            [self._add_any_case(character) for character in text] or [self._rules.add_text("")]
        )

    def _text_of(self, token: Token) -> str:
        as_json = _HEX_ESCAPE.sub(lambda m: f"\\u00{m[1]}" if m[1] else m[0], token.text.removesuffix("i"))
        text: str = json.loads(as_json)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise malformed_error(self._text, token.start, "a surrogate alone is no character")
        return text

    def _add_any_case(self, character: str) -> int:
        forms = {character, *other_forms(character, character)}
        return self._rules.native.add_characters([(ord(form), ord(form)) for form in forms], False)


def _instance(name: str, parameter: int) -> str:
    """The name of a rule with a value for its parameter."""
    return f"{name}::{parameter:#x}"


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _ignores_something(tokens: list[Token]) -> bool:
    return any(token.text == "%ignore" for token in tokens)
