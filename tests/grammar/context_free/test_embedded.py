"""JSON schemas and grammars with a lexer inside of grammars, and tokens that grammars
read by their ids: against a plain judge, against walks over whole places, and against
what is inside alone."""

import functools
import json
import random

import numpy as np
import pytest

from structout import StructuredOutputsParams, check_params
from structout.constraints.params import StructuredOutputOptions as Kind
from structout.errors import GrammarError
from structout.grammar.native.automaton import DEFAULT_LIMITS, AutomatonLimits
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.extension import core
from structout.grammar.native.grammar_context import GrammarContext
from structout.grammar.native.grammars import ContextFreeGrammar, compile_grammar, parse_grammar
from structout.grammar.native.json_schema import CompiledSchema, TextForm
from structout.grammar.native.rules import RuleSet
from structout.grammar.vocabulary import Vocabulary, text_bytes
from structout.ops.token_bitmask import allocate_token_bitmask
from support.grammar_walks import allowed as tokens_in, mask_of
from support.json_engine import EngineWalk, JsonEngine

# Tokens that begin, cross and end values: at and after the bytes, then special ones.
CROSSING = (
    '"}', '"}<', '"}</t>', "}</t>", '{"a', ' {"a":', "1,", "12]", '<t>{"', '<t>{"a": "', '"]', "],[", "{}{", "true,",
    '": "', '"b": 1}', 'x"}<t>', "1}<", 'a": 1', "},{", "[1", ", 2", "2, ", "1, 1", '"a"', '"a",', ', "a"', "0)",
    "1)(1", "12", "((1", '"a": ', '1,"a', ' "b', 'b": ', "}}", "1}}", "1}}<", "[]<", 'a"', "  ", "e1", "-1", "1 ",
    "1 2", "]]]", '"a": 1, "b": 2}<', "<t>",
)  # fmt: skip
VOCABULARY = Vocabulary(
    (*(bytes([byte]) for byte in range(256)), *(token.encode() for token in CROSSING), b"", b"", b"", b"<x>"),
    stop_token_ids=(256 + len(CROSSING),),
)
STOP = VOCABULARY.stop_token_ids[0]
CALL, END, MARKED = STOP + 1, STOP + 2, STOP + 3  # the last one also has bytes

CLOSED = {
    "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type": "integer"}},
    "type": "object",
    "required": ["a"],
    "additionalProperties": False,
}
FREE = {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3}
UNIQUE = {"type": "array", "items": {"enum": [1, 2, 12, "a", "b"]}, "uniqueItems": True}
INTEGER = {"type": "integer"}
NESTED = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}

# Grammars that are parts of others.
LISTS = 'start: "[" [start ("," start)*] "]" | INT\nINT: /[0-9]+/\n%ignore " "'
WORDS = 'start: (/[ab]+/ | "a" "<" start ">")+ | "(" start ")"\n%ignore /[ ]/'
VALUES = 'start: %json {"type": "integer"} | "[" [start ("," start)*] "]"\n%ignore " "'
DEAD_ENDS = 'start: "<" /[^<]+/ ">" | "{" start "}" | "," ","?\n%ignore " "'
INNERMOST = 'start: "(" inner ")" | "(" start ")"\n%ignore ","\ninner: %lark {' + LISTS + "\n}"


@functools.cache
def inner_rules(text):
    return parse_grammar(text, DEFAULT_LIMITS, GrammarContext(VOCABULARY))


@functools.cache
def inner_index(text):
    return CompiledGrammar(inner_rules(text), VOCABULARY)


@functools.cache
def compiled_schema(schema, key_order="any"):
    return CompiledSchema(schema, VOCABULARY, TextForm(key_order=key_order))


# Grammars as values: what the judge and the engine read.
def text(part):
    return ("text", part)


def value(schema, key_order="any"):
    return ("json", json.dumps(schema), key_order)


def grammar_inside(text):
    return ("lark", text)


def sequence(*parts):
    return ("sequence", *parts)


def either(*parts):
    return ("either", *parts)


ROOT = ("rule", "root")
SCANNERLESS = {
    "tags": {"root": sequence(text("<t>"), value(CLOSED), text("</t>"), either(text(""), ROOT))},
    "alternatives": {
        "root": either(
            sequence(value(CLOSED, "declared"), text("<t>")),
            value(FREE),
            sequence(value(UNIQUE), either(text(""), text(","), text("<"))),
            sequence(value({}), text("<")),
        )
    },
    "numbers": {"root": either(value(INTEGER), sequence(value(INTEGER), either(text(","), text("")), ROOT))},
    "in recursion": {
        "root": either(
            sequence(text("("), ROOT, text(")")),
            value(INTEGER),
            sequence(ROOT, text("("), value(UNIQUE), text(")")),
        )
    },
    "ambiguous": {
        "root": either(sequence(ROOT, ROOT), value(INTEGER), value(FREE), value(UNIQUE), text("<t>")),
    },
    "recursive schema": {
        "root": either(sequence(value(NESTED), ROOT, text("]")), text("<"), value({"type": "string"})),
    },
    "grammars in tags": {
        "root": sequence(
            text("<t>"), either(*map(grammar_inside, (LISTS, WORDS))), text("</t>"), either(text(""), ROOT)
        ),
    },
    "grammars without marks": {
        "root": either(
            sequence(grammar_inside(WORDS), either(text(""), ROOT)),
            sequence(grammar_inside(LISTS), text(",")),
            sequence(grammar_inside(DEAD_ENDS), text("2")),
        )
    },
    "grammars with values inside": {
        "root": either(
            sequence(grammar_inside(VALUES), either(text("<"), sequence(text(","), ROOT))),
            sequence(value(UNIQUE), text(","), ROOT),
            sequence(grammar_inside(INNERMOST), ROOT),
        )
    },
    "tokens": {
        "root": either(
            sequence(("tokens", (CALL,)), value(CLOSED), ("tokens", (CALL, END)), ROOT),
            sequence(text("<x"), either(text(">"), text(""))),
            sequence(value(INTEGER), ("tokens", (END,)), text("2")),
        )
    },
}


class Judge:
    """Tells by trying all splits whether symbols are a text: bytes, and ids of tokens
    that are not bytes."""

    def __init__(self, rules, symbols):
        self._rules, self._symbols = rules, symbols
        self._ends = {}  # of rules, by begin

    def accepts(self):
        has_changed = True
        while has_changed:  # a least fixpoint, for rules that begin with themselves
            before = {key: set(ends) for key, ends in self._ends.items()}
            whole = self._of(ROOT, 0, set())
            has_changed = before != self._ends
        return len(self._symbols) in whole

    def _of(self, part, begin, open_rules):
        kind, *rest = part
        match kind:
            case "text":
                end = begin + len(rest[0])
                return {end} if self._symbols[begin:end] == list(rest[0].encode()) else set()
            case "json":
                return set(json_ends(rest[0], rest[1], tuple(self._symbols[begin:]), begin))
            case "lark":
                return set(inner_ends(rest[0], tuple(self._symbols[begin:]), begin))
            case "tokens":
                return {begin + 1} if begin < len(self._symbols) and self._symbols[begin] in rest[0] else set()
            case "sequence":
                ends = {begin}
                for each in rest:
                    ends = {end for middle in ends for end in self._of(each, middle, open_rules)}
                return ends
            case "either":
                return {end for each in rest for end in self._of(each, begin, open_rules)}
        key = (rest[0], begin)
        known = self._ends.setdefault(key, set())
        if key not in open_rules:
            known |= self._of(self._rules[rest[0]], begin, open_rules | {key})
        return known


def ends_of_texts(index, symbols, begin):
    length = next((i for i, symbol in enumerate(symbols) if symbol > 255), len(symbols))
    return tuple(begin + end for end in range(1, length + 1) if index.matches(bytes(symbols[:end])))


@functools.cache
def json_ends(schema, key_order, symbols, begin):
    return ends_of_texts(compiled_schema(schema, key_order), symbols, begin)


@functools.cache
def inner_ends(text, symbols, begin):
    return ends_of_texts(inner_index(text), symbols, begin)


def add_part(rules, part):
    kind, *rest = part
    match kind:
        case "text":
            return rules.add_text(rest[0])
        case "json":
            return rules.json(compiled_schema(*rest))
        case "lark":
            return GrammarContext(VOCABULARY).add_grammar(rules, inner_rules(*rest))
        case "tokens":
            return rules.token(rest[0])
        case "sequence":
            return rules.add_sequence([add_part(rules, each) for each in rest])
        case "either":
            return rules.add_alternatives([[add_part(rules, each)] for each in rest])
    return rules.reference(rest[0])


def scannerless(name):
    rules = RuleSet("root", DEFAULT_LIMITS)
    for rule, part in SCANNERLESS[name].items():
        rules.define(rule, [[add_part(rules, part)]])
    return rules


def lexed(define):
    """Rules over a lexer. ``define(rules, word, pattern)`` gets two functions that add
    terminals."""
    rules = RuleSet("root", DEFAULT_LIMITS, has_lexer=True)
    define(
        rules,
        lambda written: rules.native.add_terminal(rules.add_text(written)),
        lambda written: rules.native.add_terminal(rules.add_regex(written)),
    )
    return rules


def any_json(rules, schema, key_order="any"):
    return rules.json(compiled_schema(json.dumps(schema), key_order))


def lexed_tags(rules, word, pattern):
    rules.define("root", [[word("<t>"), any_json(rules, CLOSED), word("</t>")], [rules.reference("root"), word(",")]])
    rules.ignore([[rules.add_regex(" +")]])


def lexed_beside_terminals(rules, word, pattern):
    root = rules.reference("root")
    rules.define(
        "root",
        [
            [pattern("[0-9]+"), any_json(rules, CLOSED, "declared"), root],
            [any_json(rules, INTEGER), pattern("[a-z,]+")],
            [pattern("[{]+"), word("<t>")],
            [rules.token([CALL, (END, MARKED)]), root],
        ],
    )
    rules.ignore([[rules.add_regex(" +")]])


def lexed_ambiguous(rules, word, pattern):
    root = rules.reference("root")
    rules.define(
        "root",
        [
            [any_json(rules, INTEGER), root, pattern("[)]+")],
            [any_json(rules, {}), pattern("[1,a<]+")],
            [word("{}"), word("{"), root],
            [pattern("x+")],
        ],
    )


def lexed_with_dead_ends(rules, word, pattern):
    rules.define(
        "root",
        [
            [word("<"), any_json(rules, CLOSED), pattern("[^<]+"), word(">")],
            [word("("), rules.reference("root"), word(")")],
            [any_json(rules, UNIQUE), pattern("x+"), word("x)")],
            [any_json(rules, INTEGER), word("<t>")],
        ],
    )


def lexed_grammars(rules, word, pattern):
    root = rules.reference("root")
    inside = [add_part(rules, grammar_inside(text)) for text in (LISTS, WORDS, DEAD_ENDS, INNERMOST)]
    rules.define(
        "root",
        [
            [word("<t>"), inside[0], word("</t>")],
            [pattern("[0-9]+"), inside[0], pattern("[1,]+"), root],
            [inside[1], pattern("[a-z}]+")],
            [word("{"), inside[2], pattern("[^<]+"), word("<")],
            [inside[3], root],
        ],
    )
    rules.ignore([[rules.add_regex(" +")]])


GRAMMARS = {name: functools.partial(scannerless, name) for name in SCANNERLESS} | {
    define.__name__.replace("_", " "): functools.partial(lexed, define)
    for define in (lexed_tags, lexed_beside_terminals, lexed_ambiguous, lexed_with_dead_ends, lexed_grammars)
}


def started(index):
    return ContextFreeGrammar(index, VOCABULARY.size, VOCABULARY.stop_token_ids, None)


def allowed(grammar):
    return tokens_in(mask_of(grammar))


def draw(tokens, rng):
    crossing = [token for token in tokens if token > 255]
    return rng.choice(crossing if crossing and rng.random() < 0.6 else tokens)


def random_tokens(index, rng, length):
    grammar, tokens = started(index), []
    while len(tokens) < length and (choices := [token for token in allowed(grammar) if token != STOP]):
        tokens.append(draw(choices, rng))
        assert grammar.accept_tokens("r", tokens[-1:])
    return grammar, tokens


@pytest.mark.parametrize("name", GRAMMARS)
def test_mask_is_that_of_a_walk_over_whole_places_and_of_trying_each_token(name, num_cases):
    index = CompiledGrammar(GRAMMARS[name](), VOCABULARY)
    rng = random.Random(name)
    num_inside = 0
    for _ in range(num_cases(12, long=200, full=600)):
        grammar = started(index)
        for _ in range(25):
            tokens = allowed(grammar)
            walked = tokens_in(np.array(grammar.matcher.walked_row(), dtype=np.uint32))
            assert walked == [token for token in tokens if token != STOP]
            if rng.random() < 0.2:
                tried = []
                for token in range(VOCABULARY.size):
                    if grammar.accept_tokens("r", [token]):
                        tried.append(token)
                        grammar.rollback(1)
                assert tried == tokens
            num_inside += grammar.state_id() >= 1 << 31
            choices = [token for token in tokens if token != STOP]
            if not choices:
                break
            assert grammar.accept_tokens("r", [draw(choices, rng)])
    assert num_inside > 10


@pytest.mark.parametrize("name", SCANNERLESS)
def test_texts_are_those_that_a_split_into_rules_and_values_explains(name, num_cases):
    rules, rng = SCANNERLESS[name], random.Random(name)
    index = CompiledGrammar(scannerless(name), VOCABULARY)
    verdicts = {True: 0, False: 0}
    for _ in range(num_cases(25, long=400, full=2_000)):
        grammar, tokens = random_tokens(index, rng, rng.randint(0, 6))
        symbols = [symbol for token in tokens for symbol in VOCABULARY.token_bytes[token] or [token]]
        rest = grammar.shortest_end()
        if rest is not None:
            symbols += rest
            assert Judge(rules, symbols).accepts()
        for _ in range(4):
            changed = list(symbols[:24])
            at = rng.randrange(len(changed) + 1)
            changed[at : at + rng.randrange(3)] = rng.choice([[], [rng.choice(b'<t>{}"a1,[]( 2:')], [CALL], [END]])
            reader = started(index)
            is_text = reader.accept_tokens("r", changed) and STOP in allowed(reader)
            assert is_text == Judge(rules, changed).accepts(), changed
            verdicts[is_text] += 1
    assert min(verdicts.values()) > 0


@pytest.mark.parametrize(
    ("schema", "begun", "rest"),
    [
        ({"enum": ["a longer text", 17, None]}, b"<", b"17>"),
        ({"enum": ["a longer text", 17, None]}, b'<"a lo', b'nger text">'),
        ({"anyOf": [{"type": "string", "minLength": 9}, {"type": "boolean"}]}, b"<", b"true>"),
        ({"type": "array", "minItems": 2, "items": {"enum": ["long", 12, 3]}}, b"<[12", b",3]>"),
        ({"type": "object", "required": ["k"], "properties": {"k": {"enum": ["texts", 0]}}}, b'<{"k":', b"0}>"),
        (INTEGER, b"<1", b">"),
    ],
)
def test_shortest_end_is_shortest_inside_of_a_value_too(schema, begun, rest):
    rules = RuleSet("root", DEFAULT_LIMITS)
    part = rules.json(compiled_schema(json.dumps(schema)))
    rules.define("root", [[rules.add_text("<"), part, rules.add_text(">")]])
    grammar = started(CompiledGrammar(rules, VOCABULARY))
    assert grammar.accept_bytes(begun)
    assert grammar.shortest_end() == rest


@pytest.mark.parametrize("name", GRAMMARS)
def test_random_text_is_finished_by_its_completion_and_forced_bytes_follow(name, num_cases):
    index = CompiledGrammar(GRAMMARS[name](), VOCABULARY)
    rng = random.Random(name)
    num_finished = 0
    for _ in range(num_cases(10, long=150, full=500)):
        grammar, _ = random_tokens(index, rng, rng.randint(0, 12))
        assert allowed(grammar)
        forced, rest = grammar.forced_bytes(), grammar.shortest_end()
        if forced:
            assert grammar.accept_bytes(forced)
            grammar.undo_bytes()
            assert rest is None or rest.startswith(forced)
        if rest is not None:
            assert grammar.accept_bytes(rest)
            assert grammar.accept_tokens("r", [STOP])
            num_finished += 1
    assert num_finished


@pytest.mark.parametrize("name", GRAMMARS)
def test_drafts_forks_rollback_and_new_states_change_nothing(name, num_cases):
    rules, rng = GRAMMARS[name](), random.Random(name)
    index, moving = CompiledGrammar(rules, VOCABULARY), CompiledGrammar(rules, VOCABULARY)
    trie = VOCABULARY.trie
    moving.native = core().CompiledGrammar(rules.network(), rules.limits.native, trie, max_growth=1)
    for _ in range(num_cases(6, long=60, full=200)):
        _, tokens = random_tokens(index, rng, 14)
        masks = []
        grammar = started(index)
        for token in tokens:
            masks.append(allowed(grammar))
            assert grammar.accept_tokens("r", [token])
        masks.append(allowed(grammar))

        at = rng.randint(0, len(tokens))
        drafting, moved = started(index), started(moving)
        assert drafting.accept_tokens("r", tokens[:at])
        rows = allocate_token_bitmask(len(tokens) - at + 2, VOCABULARY.size, pin_memory=False)
        assert drafting.fill_bitmask_drafts(rows, 0, [*tokens[at:], 300_000]) == len(tokens) - at
        drafted = [tokens_in(row) for row in rows.numpy()]
        assert drafted[: len(tokens) - at + 1] == masks[at:]
        fork = drafting.fork()
        assert fork.accept_tokens("r", tokens[at:])
        assert allowed(fork) == masks[-1]
        assert allowed(drafting) == masks[at]
        fork.rollback(len(tokens) - at)
        assert allowed(fork) == masks[at]

        for token, mask in zip(tokens, masks, strict=False):
            assert allowed(moved) == mask
            assert moved.accept_tokens("r", [token])
        moved.rollback(len(tokens) - at)
        assert allowed(moved) == masks[at]
        assert moved.accept_tokens("r", tokens[at:])
        assert allowed(moved) == masks[-1]


def test_value_has_the_masks_that_its_schema_has_alone():
    rules = RuleSet("root", DEFAULT_LIMITS)
    rules.define("root", [[rules.add_text("<t>"), any_json(rules, CLOSED, "declared"), rules.add_text("</t>")]])
    grammar = started(CompiledGrammar(rules, VOCABULARY))
    backend = NativeBackend(VOCABULARY, form=TextForm(key_order="declared"))
    alone = backend.compile_grammar(Kind.JSON, json.dumps(CLOSED))
    alone.matcher = core().SchemaMatcher(compiled_schema(json.dumps(CLOSED), "declared").native, [STOP])
    assert grammar.accept_bytes(b"<t>{")
    assert alone.accept_bytes(b"{")
    for byte in b'"a": "x", "b": 12':
        assert set(allowed(alone)) <= set(allowed(grammar))
        assert grammar.accept_tokens("r", [byte])
        assert alone.accept_tokens("r", [byte])


def test_number_ends_in_front_of_what_follows():
    rules = RuleSet("root", DEFAULT_LIMITS)
    rules.define("root", [[any_json(rules, {"type": "number"}), rules.add_text(".5e;")]])
    index = CompiledGrammar(rules, VOCABULARY)
    assert index.matches("1.5.5e;")
    assert index.matches("1.5e;")  # the value is 1
    assert not index.matches("1;")
    grammar = started(index)
    assert grammar.accept_bytes(b"12.5")
    assert grammar.forced_bytes() == b""
    assert grammar.accept_bytes(b"e;")
    assert allowed(grammar) == [STOP]


def test_token_goes_on_after_a_number_that_no_byte_of_json_ends():
    """No token of this vocabulary leads from a number to JSON around it."""
    vocabulary = Vocabulary((*(bytes([byte]) for byte in range(256)), b"1a", b""), stop_token_ids=(257,))
    rules = RuleSet("root", DEFAULT_LIMITS)
    number = CompiledSchema(json.dumps(INTEGER), vocabulary, TextForm())
    rules.define("root", [[rules.json(number), rules.add_text("a")]])
    grammar = ContextFreeGrammar(CompiledGrammar(rules, vocabulary), vocabulary.size, vocabulary.stop_token_ids, None)
    assert grammar.accept_tokens("r", [ord("-")])
    assert allowed(grammar) == [*b"0123456789", 256]


def test_ambiguous_values_do_not_multiply():
    """A number in a list without commas may end after each digit: the ways meet in
    equal places."""
    index = CompiledGrammar(scannerless("numbers"), VOCABULARY)
    grammar = started(index)
    assert grammar.accept_bytes(b"1" * 400)
    assert not grammar.error_reason
    assert ord("1") in allowed(grammar)


def names_of(count):
    return {"type": "object", "properties": {f"n{i:02}": {"type": "boolean"} for i in range(count)}}


def test_texts_whose_schema_has_no_room_beside_others_go_on_alone():
    """The limit of a schema's states is one for each text: what it lacks beside others,
    a text makes again, drafts included."""
    engine, rng = JsonEngine(text_bytes(VOCABULARY), STOP), random.Random(3)
    # The objects of this schema have a state for each set of names.
    schema = names_of(40) | {"anyOf": [names_of(30) | {"maxProperties": 38}, names_of(35) | {"maxProperties": 36}]}
    texts = []
    for _ in range(8):
        names = [name for name in schema["properties"] if rng.random() < 0.5]
        rng.shuffle(names)
        texts.append(b"<{" + ",".join(f'"{name}":true' for name in names).encode() + b"}>")
    alone = engine.compile(schema)
    walk = engine.walk(alone)
    for byte in max(texts, key=len)[1:-1]:
        walk.allowed()
        assert walk.matcher.accept([byte])
    limits = AutomatonLimits().native
    limits.schema_states = 5 * alone.num_states // 4
    rules = core().Rules()
    value = rules.add_json(engine.compile(schema, limits=limits))
    whole = rules.add_sequence([rules.add_text(b"<"), value, rules.add_text(b">")])
    network = core().Network(rules, whole, None, DEFAULT_LIMITS.native)
    index = core().CompiledGrammar(network, DEFAULT_LIMITS.native, engine.trie)
    walks = [EngineWalk(engine, core().GrammarMatcher(index, [STOP])) for _ in texts]
    rows = allocate_token_bitmask(8, VOCABULARY.size, pin_memory=False)
    for at in range(0, max(map(len, texts)), 7):
        for walk, each in zip(walks, texts, strict=True):
            part = each[at : at + 7]
            if part:
                step = core().Step({0: walk.matcher}, [0], {0: [*part]})
                step.run(1 << 62, core().MaskBuffer(rows.data_ptr(), 4 * rows.stride(0), len(rows)))
                assert step.num_allowed.tolist() == [len(part)], walk.matcher.error
                assert walk.matcher.accept_bytes(part), walk.matcher.error
    for walk in walks:
        assert walk.allowed().tolist() == [STOP]
        walk.matcher.rollback(1)
        assert STOP not in walk.allowed()


# -- tokens ----------------------------------------------------------------------------


def test_token_is_read_by_its_id_where_the_grammar_names_it_and_by_its_bytes_elsewhere():
    rules = RuleSet("root", DEFAULT_LIMITS)
    named = rules.add_sequence([rules.token([MARKED]), rules.add_text("!")])
    spelled = rules.add_sequence([rules.add_text("<x>"), rules.add_text("?")])
    rules.define("root", [[rules.add_text("a"), named], [rules.add_text("a"), spelled], [rules.add_text("b"), spelled]])
    grammar = started(CompiledGrammar(rules, VOCABULARY))
    assert grammar.accept_tokens("r", [ord("a"), MARKED])
    assert allowed(grammar) == [ord("!"), ord("?")]
    grammar.reset()
    assert grammar.accept_tokens("r", [ord("b"), MARKED])
    assert allowed(grammar) == [ord("?")]
    grammar.reset()
    assert grammar.accept_tokens("r", [ord("a"), *b"<x>"])
    assert allowed(grammar) == [ord("?")]


def test_token_without_bytes_is_allowed_beside_nearly_all_others():
    """Such a mask is kept as a list of what differs from all tokens with bytes."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [word.encode() for word in (*letters, *(first + second for first in "abcdefgh" for second in letters))]
    vocabulary = Vocabulary((*words, b"1", b"", b""), stop_token_ids=(len(words) + 2,))
    for dialect in ("root ::= [a-z]* <[{}]>", "start: /[a-z]*/ <[{}]>"):
        index = compile_grammar(dialect.format(len(words) + 1), vocabulary)
        grammar = ContextFreeGrammar(index, vocabulary.size, vocabulary.stop_token_ids, None)
        assert allowed(grammar) == [*range(len(words)), len(words) + 1]


def test_stop_token_that_a_grammar_names_has_a_place_inside_the_text():
    rules = RuleSet("root", DEFAULT_LIMITS)
    rules.define("root", [[rules.add_text("a"), rules.token([STOP]), rules.add_text("b")]])
    grammar = started(CompiledGrammar(rules, VOCABULARY))
    assert not grammar.accept_tokens("r", [STOP])
    assert grammar.accept_tokens("r", [ord("a")])
    assert allowed(grammar) == [STOP]
    rows = allocate_token_bitmask(4, VOCABULARY.size, pin_memory=False)
    assert grammar.fill_bitmask_drafts(rows, 0, [STOP, ord("b"), STOP]) == 3
    assert [tokens_in(row) for row in rows.numpy()[:3]] == [[STOP], [ord("b")], [STOP]]
    assert grammar.accept_tokens("r", [STOP, ord("b")])
    assert not grammar.is_terminated()
    assert grammar.accept_tokens("r", [STOP])
    assert grammar.is_terminated()


def test_tokens_outside_of_the_vocabulary_are_never_allowed_and_bad_ids_are_refused():
    rules = RuleSet("root", DEFAULT_LIMITS)
    rules.define("root", [[rules.token([(CALL, 1 << 30)])]])
    assert allowed(started(CompiledGrammar(rules, VOCABULARY))) == [CALL, END, MARKED]
    for ids in ([-1], [(5, 4)], [1 << 31]):
        with pytest.raises(ValueError, match="expected token ids"):
            rules.token(ids)


def test_schema_over_another_vocabulary_is_refused():
    other = Vocabulary((b"a", b""), stop_token_ids=(1,))
    rules = RuleSet("root", DEFAULT_LIMITS)
    rules.define("root", [[any_json(rules, INTEGER)]])
    with pytest.raises(ValueError, match="over another vocabulary"):
        core().CompiledGrammar(rules.network(), rules.limits.native, other.trie)


# -- grammars as requests write them ---------------------------------------------------


def test_json_in_a_grammar_is_written_as_the_backend_and_the_request_say():
    grammar = 'start: "x" %json {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": false}'
    backend = NativeBackend(VOCABULARY, form=TextForm(any_whitespace=False, key_order="any"))
    index = backend.compile_native(StructuredOutputsParams(grammar=grammar).constraint())
    assert index.matches('x{"b": 2, "a": 1}')
    assert not index.matches('x{"b":2, "a": 1}')
    declared = StructuredOutputsParams(grammar=grammar, key_order="declared").constraint()
    assert not backend.compile_native(declared).matches('x{"b": 2, "a": 1}')


def test_check_without_a_tokenizer_takes_any_token_but_refuses_what_no_tokenizer_has():
    check_params(StructuredOutputsParams(grammar='start: <|im_end|> <[151645]> %json {"type": "integer"}'))
    check_params(StructuredOutputsParams(grammar="root ::= !<[151645]> <think>"))
    with pytest.raises(GrammarError, match="is no list of token ids"):
        check_params(StructuredOutputsParams(grammar='start: <[5-]> "a"'))


def test_memory_of_a_grammar_counts_its_schemas():
    rules = RuleSet("root", DEFAULT_LIMITS)
    schema = compiled_schema(json.dumps(CLOSED))
    rules.define("root", [[rules.json(schema)]])
    assert CompiledGrammar(rules, VOCABULARY).memory_bytes > schema.memory_bytes


def test_memory_of_a_grammar_counts_the_grammars_inside_and_where_their_texts_may_end():
    rules, inside = RuleSet("root", DEFAULT_LIMITS), CompiledGrammar(inner_rules(WORDS), VOCABULARY)
    rules.define("root", [[rules.add_grammar(inside.native), rules.add_text("<t>")]])
    index = CompiledGrammar(rules, VOCABULARY)
    before = index.memory_bytes
    assert before > inside.memory_bytes
    inside_before = inside.memory_bytes
    grammar = started(index)
    assert grammar.accept_bytes(b"ab")
    assert allowed(grammar)
    assert index.memory_bytes - before > inside.memory_bytes - inside_before > 0
