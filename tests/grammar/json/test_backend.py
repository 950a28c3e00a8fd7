"""JSON schemas that structout's own engine serves: masks, drafts, refusals, and
requests of a manager."""

import json
import random

import jsonschema
import numpy as np
import pytest
import torch

from structout import GrammarStatus, StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from structout.constraints.params import StructuredOutputOptions as Kind
from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError
from structout.grammar import registry
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.native import extension
from structout.grammar.native.automaton import AutomatonLimits
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.json_schema import CompiledSchema, TextForm
from structout.grammar.native.token_index import FsmGrammar
from structout.grammar.registry import BackendSet, check_params, register_backend
from structout.grammar.vocabulary import Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask
from support import corpus, native_steps
from support.grammar_walks import allowed, mask_of
from support.llguidance_backend import LlguidanceBackend
from support.managers import add
from support.mask_walks import STYLES, MaskWalker
from support.tokenizers_on_the_spot import byte_fallback, byte_level

V = 525
TOKENIZER = byte_level()
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER, V)
VOCABULARIES = {"byte_level": VOCABULARY, "byte_fallback": Vocabulary.from_tokenizer(byte_fallback(), V)}
STOP = VOCABULARY.stop_token_ids[0]
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(256,))

STRING = {"type": "string"}
SCHEMAS = corpus.schemas("masks")
OBJECT, TREE = SCHEMAS["object"], SCHEMAS["recursion"]


# What has to be written before a text may end.
HINTS = {
    "object": [b'"name":""'],
    "recursion": [b'"v":1'],
    "unique": [b"1", b"[]", b"2"],
    "overlapping patterns": [b'"a":1', b'"b":9', b'b"'],
    "format": [b"2024-02-29"],
    "anything": [b'"":0'],
}


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


def backend(name="byte_level", **options):
    return NativeBackend(VOCABULARIES[name], **options)


def grammar_of(schema, **options):
    return backend(**options).compile_grammar(Kind.JSON, json.dumps(schema))


def constraint_of(schema, **options):
    return StructuredOutputsParams(json=schema, **options).constraint()


def ids_of(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


# -- the backend --------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("name", SCHEMAS)
def test_texts_drawn_from_masks_are_valid(name, vocabulary, num_cases):
    grammar = backend(vocabulary).compile_grammar(Kind.JSON, json.dumps(SCHEMAS[name]))
    walker = MaskWalker(VOCABULARIES[vocabulary])
    validator = jsonschema.Draft202012Validator(
        SCHEMAS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    rng = random.Random(name)
    for i in range(num_cases(12, long=600)):
        text = walker.draw(
            grammar, STYLES[i % len(STYLES)], rng, max_tokens=rng.randint(1, 30), hints=HINTS.get(name, ())
        )
        assert text is not None, "a walk cannot end"
        assert validator.is_valid(json.loads(text)), text
        assert grammar.index.matches(text)
    assert grammar.num_tokens == 0


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("name", SCHEMAS)
def test_fill_bitmask_allows_the_tokens_that_are_accepted(name, vocabulary, num_cases):
    grammar = backend(vocabulary).compile_grammar(Kind.JSON, json.dumps(SCHEMAS[name]))
    stop = VOCABULARIES[vocabulary].stop_token_ids[0]
    rng = random.Random(name)
    for _ in range(num_cases(8, long=60)):
        tokens = set(allowed(mask_of(grammar)))
        for token in range(-1, V + 1):
            is_accepted = grammar.accept_tokens("", [token])
            assert is_accepted == (token in tokens), token
            if is_accepted:
                grammar.rollback(1)
        texts = sorted(tokens - {stop})
        if not texts:
            break
        assert grammar.accept_tokens("", [rng.choice(texts)])


# Tokens that end inside an escape or a character, or go on from there.
_PARTS = (b"\\", b"\\x", b"a\\", b"n\\", b"\\u12", b"\\u12zz", b"u2028", b'a"}', b'b", "a": "', b"ab", b"aab")
# Tokens of many characters, of characters of several kinds, and of incomplete ones.
_LONG = (b"x" * 31, b"x" * 32, b"x" * 40, b"\\n" * 33, b"x" * 33 + b'"}', b"xx", b'","')
_CHARACTERS = ("漢字", "aé-b", "\u00a0é", "\u3000", "é" * 33, "x漢", "😀ab", "9 a:b")
_CUT = tuple(text.encode()[:-1] for text in _CHARACTERS)
_BYTES_OF_SEPARATORS = tuple("\u2028\u2029\u2030é".encode()[i:j] for i in range(11) for j in range(i + 1, 12))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"pattern": "^.+$"},
        {"pattern": "^a.*b"},
        {"pattern": "[ab]{3}"},
        {"pattern": "\u2028"},
        {"pattern": "^[^\u2030]*$", "minLength": 3},
        {"maxLength": 3},
        {"pattern": "ab", "maxLength": 5},
        {"minLength": 3, "maxLength": 3},
        {"minLength": 2, "maxLength": 36},
        {"maxLength": 38},
        {"pattern": "^[^\\s]+$"},
        {"pattern": "^[^:]*$", "maxLength": 34},
        {"pattern": "^[a-z0-9._-]+$"},
        {"pattern": "^[A-Fx漢é]*$", "maxLength": 4},
        {"pattern": "x$", "maxLength": 3},
    ],
)
@pytest.mark.parametrize("place", ["object", "array"])
def test_masks_inside_strings_allow_the_tokens_that_are_accepted(value, place, num_cases):
    characters = (text.encode() for text in _CHARACTERS)
    tokens = (*(bytes([byte]) for byte in range(256)), *_PARTS, *_LONG, *characters, *_CUT, *_BYTES_OF_SEPARATORS)
    parts = dict.fromkeys(tokens)
    vocabulary = Vocabulary((*parts, b""), stop_token_ids=(len(parts),))
    string = {"type": "string", **value}
    if place == "object":
        schema = {"type": "object", "additionalProperties": string, "propertyNames": value, "minProperties": 1}
    else:
        schema = {"type": "array", "items": string, "uniqueItems": True, "minItems": 1}
    grammar = NativeBackend(vocabulary).compile_grammar(Kind.JSON, json.dumps(schema))
    rng = random.Random(str(value))
    for _ in range(num_cases(4, long=40)):
        assert grammar.accept_tokens("", list(b'{"' if place == "object" else b'["'))
        for _ in range(25):
            tokens = set(allowed(mask_of(grammar)))
            for token in range(vocabulary.size):
                is_accepted = grammar.accept_tokens("", [token])
                assert is_accepted == (token in tokens), vocabulary.token_bytes[token]
                if is_accepted:
                    grammar.rollback(1)
            long = [token for token in tokens if len(vocabulary.token_bytes[token]) > 1]
            texts = sorted(long if long and rng.random() < 0.6 else tokens - {len(parts)})
            if not texts:
                break
            assert grammar.accept_tokens("", [rng.choice(texts)])
        grammar.reset()


def test_an_array_uses_up_its_many_values():
    values = [f"{group}/{name}" for group in ("css", "a", "css/text") for name in range(60)]
    schema = {"type": "array", "items": {"enum": values}, "uniqueItems": True, "minItems": len(values)}
    grammar = grammar_of(schema)
    rng = random.Random(0)
    tokens: list[int] = []
    while not tokens or tokens[-1] != STOP:
        possible = allowed(mask_of(grammar))
        assert possible, "no token may follow"
        tokens.append(rng.choice(possible))
        assert grammar.accept_tokens("", tokens[-1:])
    text = b"".join(VOCABULARY.token_bytes[token] for token in tokens[:-1])
    assert sorted(json.loads(text)) == sorted(values)


@pytest.mark.parametrize("name", SCHEMAS)
def test_drafts_have_the_masks_of_their_positions(name, num_cases):
    own_backend = backend()
    grammar = own_backend.compile_grammar(Kind.JSON, json.dumps(SCHEMAS[name]))
    walker = MaskWalker(VOCABULARY)
    rng = random.Random(name)
    for _ in range(num_cases(6, long=200)):
        text = walker.draw(grammar, "uniform", rng, max_tokens=12, hints=HINTS.get(name, ()))
        drafts = [*ids_of(text.decode()), STOP, 1]
        bad = rng.randrange(len(drafts))
        if rng.random() < 0.5:
            drafts[bad] = rng.choice([-1, V, 77])
        expected = allocate_token_bitmask(len(drafts) + 1, V, pin_memory=False)
        num_allowed = grammar.fill_bitmask_drafts(expected, 0, drafts)
        reference, alone = native_steps.expected_rows(grammar, drafts)
        assert num_allowed == alone
        assert torch.equal(expected, reference)
        step = native_steps.step_of([grammar], [drafts])
        assert torch.equal(native_steps.run(step, V), reference)
        assert step.num_allowed.tolist() == [alone]
        assert grammar.num_tokens == 0


def test_rollback_and_fork_restore_used_keys_and_items():
    schema = {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "null"}}, "minItems": 1}
    grammar = grammar_of(schema)
    assert grammar.accept_tokens("", ids_of('[{"a": null, "'))
    before = mask_of(grammar)
    assert not grammar.accept_tokens("", ids_of('a": null}]'))
    fork = grammar.fork()
    assert grammar.accept_tokens("", ids_of('b": null}]'))
    assert grammar.accept_tokens("", [STOP, 5])
    assert grammar.is_terminated()
    assert not fork.is_terminated()
    assert np.array_equal(mask_of(fork), before)
    grammar.rollback(2 + len(ids_of('b": null}]')))
    assert np.array_equal(mask_of(grammar), before)
    assert not grammar.accept_tokens("", ids_of('a"'))
    assert fork.accept_tokens("", ids_of('ab": null}, {"a": null}]'))
    grammar.reset()
    assert grammar.num_tokens == 0
    assert grammar.accept_tokens("", ids_of("[{}]"))


def test_state_id_names_the_states_that_the_mask_looks_at():
    schema = {"type": ["array", "integer"], "items": {"$ref": "#"}, "minItems": 1, "maxItems": 2}
    grammar = grammar_of(schema)
    masks = {}

    def state_id_after(text):
        grammar.reset()
        assert grammar.accept_tokens("", ids_of(text))
        mask = mask_of(grammar).tolist()
        assert masks.setdefault(grammar.state_id(), mask) == mask
        return grammar.state_id()

    for text in ("", "[1", "[1,", "[[1", "[[1]", "[[1],", "[[1],1", "[[1],1]", "[[[1]", "[[[1]]", "[[[1],1],1]"):
        state_id_after(text)
    # After an item a token may close the array around it too, but not the next one.
    assert state_id_after("[1") != state_id_after("[[1") == state_id_after("[" * 40 + "1")
    assert len(state_id_after("[[1")) == 3
    other = grammar_of(schema)
    assert other.accept_tokens("", ids_of("[1"))
    assert other.state_id()[0] != state_id_after("[1,")[0]


def test_copy_ends_with_its_own_stop_tokens():
    grammar = grammar_of(OBJECT)
    other = VOCABULARY.token_bytes.index(b"}")
    copy = grammar.copy(stop_token_ids=[other])
    assert copy.index is grammar.index
    assert copy.memory_bytes == grammar.memory_bytes > 0
    assert copy.accept_tokens("", ids_of('{"name": "Ada"'))
    assert other not in allowed(mask_of(copy))
    assert grammar.accept_tokens("", ids_of('{"name": "Ada"}'))
    assert allowed(mask_of(grammar)) == [STOP]
    assert grammar.accept_tokens("", [STOP])
    assert grammar.is_terminated()
    assert grammar.device_tables() is None


def test_forced_tokens_are_those_of_the_tokenizer():
    schema = {"const": {"quantity": "London"}}
    own_backend = NativeBackend(
        VOCABULARY,
        form=TextForm(any_whitespace=False),
        canonical_tokenizer=CanonicalTokenizer(TOKENIZER, VOCABULARY),
    )
    grammar = own_backend.compile_grammar(Kind.JSON, json.dumps(schema))
    assert grammar.forced_bytes() == b'{"quantity": "London"}'
    text = '{"quantity": "'
    assert grammar.accept_tokens("", ids_of(text))
    assert grammar.forced_bytes() == b'London"}'
    assert grammar.compute_ff_tokens() == ids_of(text + 'London"}')[len(ids_of(text)) :]


def test_grammars_of_schemas_and_patterns_share_a_step():
    own_backend = backend()
    grammars = [
        grammar_of(OBJECT),
        own_backend.compile_grammar(Kind.REGEX, "[a-c]{3}"),
        grammar_of(TREE),
        own_backend.compile_grammar(Kind.CHOICE, '["yes", "no"]'),
    ]
    assert isinstance(grammars[1], FsmGrammar)
    texts = ['{"name"', "ab", '{"v": ', "y"]
    assert native_steps.accept(grammars, [ids_of(text) for text in texts]) == [True] * 4
    drafts = [ids_of(": "), ids_of("c"), None, ids_of("n")]
    step = native_steps.step_of(grammars, drafts)
    rows = native_steps.run(step, V)
    assert step.dead_ends == []
    expected = allocate_token_bitmask(len(rows), V, pin_memory=False)
    for grammar, first, tokens in zip(grammars, step.row_indptr, drafts, strict=False):
        grammar.fill_bitmask_drafts(expected, int(first), tokens or [])
    assert np.array_equal(rows.numpy(), expected.numpy())


# -- the form of texts --------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "yes", "no"),
    [
        (
            TextForm(max_whitespace=2, key_order="any"),
            ['{"a":1,"b":2}', '{ "b" : 2 ,\n "a":1 }', '{"a": 1, "z": 0, "b": 2}'],
            ['{   "a":1,"b":2}'],
        ),
        (
            TextForm(key_order="any"),
            ['{"b":1,"a":2}', '{ "b": 2,\n "a":1 }', '{\n\t\t"a": 1, "z": 0,\n  "b": 2\n}'],
            ['{"b" :1,"a":2}', '{"b":  1,"a":2}', '{\n\n"a":1,"b":2}', '{  "a":1,"b":2}', '{\n \t"a":1,"b":2}'],
        ),
        (TextForm(max_whitespace=8), ['{       "a":1,"b":2}'], [' {"a":1,"b":2}', '{"a":1,"b":2} ']),
        (TextForm(max_whitespace=None), ['{' + " " * 99 + '"a":1,"b":2}'], []),
        (
            TextForm(any_whitespace=False),
            ['{"a": 1, "b": 2}'],
            ['{"a":1, "b": 2}', '{"a": 1,"b": 2}', '{ "a": 1, "b": 2}'],
        ),
        (
            TextForm(),
            ['{"a":1,"b":2}', '{"b":2}', '{"a": 1, "b": 2, "z": 0}'],
            ['{"b":2,"a":1}', '{"z":0,"a":1,"b":2}'],
        ),
    ],
)  # fmt: skip
def test_form_sets_whitespace_and_the_order_of_keys(form, yes, no):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["b"]}
    index = CompiledSchema(json.dumps(schema), BYTES, form)
    assert [text for text in yes if not index.matches(text)] == []
    assert [text for text in no if index.matches(text)] == []


def test_key_order_of_another_name_is_refused():
    message = 'key_order must be "declared" or "any", got \'sorted\''
    with pytest.raises(ValueError, match=message):
        StructuredOutputsConfig(key_order="sorted")
    with pytest.raises(GrammarError, match=message):
        StructuredOutputsParams(json=OBJECT, key_order="sorted").validate()
    with pytest.raises(GrammarError, match="key_order applies to json, grammars, tags and tools only, got a regex"):
        StructuredOutputsParams(regex="a", key_order="any").validate()


def test_keys_are_declared_unless_the_config_or_the_request_says_otherwise():
    assert StructuredOutputsConfig().key_order == TextForm().key_order == "declared"
    text = ids_of('{"age": 3, "name": ""}')
    for configured in ("declared", "any"):
        backends = BackendSet(VOCABULARY, StructuredOutputsConfig(key_order=configured))
        for asked in (None, "declared", "any"):
            params = StructuredOutputsParams(json=OBJECT, backend="native", key_order=asked)
            grammar = backends.compile(params.constraint()).grammar
            assert grammar.accept_tokens("", text) is ((asked or configured) == "any")


def test_requests_of_one_schema_with_different_key_orders_share_no_compilation():
    orders = {"a": None, "b": "any", "c": "declared", "d": "any"}
    text = ids_of('{"age": 3, "name": ""}')
    with StructuredOutputManager(TOKENIZER, V, StructuredOutputsConfig(compile_timeout=60)) as manager:
        for request_id, key_order in orders.items():
            add(manager, request_id, json=OBJECT, key_order=key_order)
        accepted = {request_id: manager.accept_tokens(request_id, text) for request_id in orders}
    assert accepted == {request_id: key_order == "any" for request_id, key_order in orders.items()}


@pytest.mark.parametrize("form", [TextForm(), TextForm(any_whitespace=False), TextForm(max_whitespace=None)])
def test_items_that_others_leave_may_come_after_spaces(form):
    """The items that must follow leave "b" alone, and the space in front is no part of
    it."""
    items = [{"const": "c"}, {"enum": ["a", "b"]}, {"const": "a"}]
    schema = {"type": "array", "prefixItems": items, "minItems": 3, "uniqueItems": True}
    index = CompiledSchema(json.dumps(schema), BYTES, form)
    assert index.matches('["c", "b", "a"]')
    assert not index.matches('["c", "a", "a"]')


def test_json_object_allows_objects_only():
    grammar = backend().compile_grammar(Kind.JSON_OBJECT, "{}")
    assert not grammar.index.matches("[]")
    assert grammar.index.matches('{"a": [1.5]}')
    assert not grammar.index.matches("1")
    assert not grammar.index.matches('"a"')


# -- formats ------------------------------------------------------------------------


def test_narrower_formats_under_not_are_refused_unless_lenient():
    schema = {
        "type": "object",
        "properties": {"p": {"oneOf": [{"type": "string", "maxLength": 3, "format": "regex"}, {"const": "("}]}},
    }
    place = "#/properties/p/oneOf/0/format"
    backends = BackendSet(VOCABULARY, StructuredOutputsConfig())
    with pytest.raises(GrammarError, match=f"{place}: the format regex is enforced by") as refused:
        backends.compile(constraint_of(schema))
    assert (refused.value.kind, refused.value.pointer) == (GrammarErrorKind.UNSUPPORTED, place)
    with pytest.raises(GrammarError, match=f"{place}: the format regex is enforced by"):
        backend().compile(constraint_of(schema))
    lenient = backends.compile(constraint_of(schema, backend="native", lenient=True))
    assert lenient.weakened == (place,)
    assert lenient.annotations == ()
    assert lenient.grammar.index.matches('{"p":"abc"}')
    assert not lenient.grammar.index.matches('{"p":"abcd"}')


@pytest.mark.parametrize(("draft", "has_reserved_labels"), [("draft-06", False), ("draft-07", True)])
@pytest.mark.parametrize("host", ["ab--cd.example", "xn--X"])
def test_hostname_with_a_reserved_label_is_refused_from_draft_7_on(draft, has_reserved_labels, host):
    schema = {"$schema": f"http://json-schema.org/{draft}/schema#", "type": "string", "format": "hostname"}
    index = backend().compile(constraint_of(schema)).grammar.index
    assert index.matches(json.dumps(host)) is not has_reserved_labels
    del schema["type"]
    negated = backend().compile(constraint_of({"$schema": schema.pop("$schema"), "not": schema})).grammar.index
    assert negated.matches(json.dumps(host)) is has_reserved_labels


def test_format_of_another_type_than_string_constrains_nothing():
    compiled = backend().compile(constraint_of({"type": "integer", "format": "regex"}))
    assert compiled.grammar.index.matches("7")


# -- refusals -----------------------------------------------------------------------


MANY_EQUAL_ITEMS = {"type": "array", "items": {"const": 1}, "uniqueItems": True, "minItems": 2}


@pytest.mark.parametrize(
    ("schema", "kind", "pointer", "keyword", "message"),
    [
        ({"items": {"pattern": "(a"}}, "malformed", "#/items/pattern", "pattern", "is not closed"),
        ({"items": {"pattern": "(?<=a)"}}, "unsupported", "#/items/pattern", "pattern", "lookbehind is not supported"),
        ({"items": {"type": "text"}}, "malformed", "#/items/type", "type", "unknown type text"),
        ({"$ref": "#/$defs/a"}, "malformed", "#/$ref", "$ref", "there is nothing in that place"),
        ({"type": "number", "allOf": [{"minimum": 3}, {"maximum": 2}]}, "impossible", None, None, "allows no text"),
        (MANY_EQUAL_ITEMS, "impossible", "#/uniqueItems", "uniqueItems", "only 1 value"),
    ],
)  # fmt: skip
def test_refusals_name_the_place(schema, kind, pointer, keyword, message):
    for refuse in (
        lambda: backend().compile(constraint_of(schema)),
        lambda: backend().check(constraint_of(schema)),
        lambda: CompiledSchema(json.dumps(schema), BYTES),
    ):
        with pytest.raises(GrammarError, match=message) as refused:
            refuse()
        assert refused.value.kind is GrammarErrorKind(kind)
        assert (refused.value.pointer, refused.value.keyword) == (pointer, keyword)
    with pytest.raises(GrammarError, match=message) as refused:
        check_params(StructuredOutputsParams(json=schema, backend="native"))
    assert refused.value.kind is GrammarErrorKind(kind)


def test_text_that_the_vocabulary_cannot_spell_is_impossible():
    without_a = Vocabulary((*(bytes([byte]) for byte in range(256) if byte not in b"a0\\"), b""), (253,))
    with pytest.raises(GrammarError, match="allows no text at all") as refused:
        NativeBackend(without_a).compile(constraint_of({"const": "a"}))
    assert refused.value.kind is GrammarErrorKind.IMPOSSIBLE


def test_errors_of_the_core_are_translated():
    with pytest.raises(GrammarError) as refused, extension.grammar_errors():
        raise extension.core().SchemaError("not enforced", "unsupported", "#/a/format")
    assert (str(refused.value), refused.value.pointer, refused.value.keyword) == (
        "#/a/format: not enforced",
        "#/a/format",
        "format",
    )
    with pytest.raises(GrammarError, match=r"^expected a value$") as refused, extension.grammar_errors():
        raise extension.core().SchemaError("expected a value", "malformed", "")
    assert refused.value.pointer is None


# -- beside llguidance -----------------------------------------------------------------


def schema_of_both(rng, depth):
    """A random schema for which both engines write the same texts: without numbers,
    free keys and escapes."""
    kind = rng.randrange(9 if depth else 6)
    if kind < 2:
        return {"type": ("boolean", "null")[kind]}
    if kind == 2:
        return {"enum": rng.sample(["a", "ab", "abc", True, None, "x y"], rng.randint(1, 4))}
    if kind == 3:
        return {"const": rng.choice(["yes", False, {"k": "v"}, ["a", []]])}
    if kind < 6:
        pattern = rng.choice(["^[a-z]{1,3}$", "^(ab|c)*$", "^[0-9]{4}-[0-9]{2}$"])
        return {"type": "string", "pattern": pattern} if kind == 4 else {"pattern": "^[a-z]*$", "maxLength": 3} | STRING
    if kind == 6:
        return {"type": "array", "items": schema_of_both(rng, depth - 1), "minItems": rng.randint(0, 2), "maxItems": 3}
    names = rng.sample(["a", "ab", "name", "kind", "x-y", "b1"], rng.randint(0, 4))
    return {
        "type": "object",
        "properties": {name: schema_of_both(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.5],
        "additionalProperties": False,
    }


def test_masks_equal_those_of_llguidance_where_both_write_the_same_texts(num_cases):
    config = StructuredOutputsConfig(any_whitespace=False, key_order="declared")
    backends = NativeBackend.from_config(VOCABULARY, config, None), LlguidanceBackend(VOCABULARY)
    num_masks, num_seeds = 0, num_cases(60, long=1000)
    for seed in range(num_seeds):
        rng = random.Random(seed)
        schema = schema_of_both(rng, 3)
        grammars = [backend.compile_grammar(Kind.JSON, json.dumps(schema)) for backend in backends]
        for _ in range(60):
            own, other = map(mask_of, grammars)
            assert np.array_equal(own, other), (seed, schema)
            num_masks += 1
            token = rng.choice(allowed(own))
            if token == STOP:
                break
            assert all(grammar.accept_tokens("", [token]) for grammar in grammars)
    assert num_masks > 5 * num_seeds


# -- limits -------------------------------------------------------------------------

_NO_TIME = AutomatonLimits(seconds=1e-9)
# Which multiples are still needed is decided for each of many sets of them. A schema
# with more conditions on one value would be rehearsed, and refused.
HARD = {
    "type": "array",
    "items": {
        "type": "array",
        "maxItems": 9,
        "items": {"type": "integer", "minimum": 0},
        "allOf": [{"contains": {"multipleOf": prime}} for prime in (7, 11, 13, 17, 19, 23, 29, 31)],
    },
}
_TOO_MUCH_WORK = "the constraint takes too much work: cpu_milliseconds is limited to"


def test_compilation_beyond_the_limits_raises_a_limit_error():
    schema = {"items": {"pattern": "(a|b)*a(a|b){19}"}}
    with pytest.raises(GrammarLimitError, match="pattern_states is limited to 65,536") as refused:
        grammar_of(schema)
    assert refused.value.limit == "pattern_states"
    assert (refused.value.pointer, refused.value.keyword) == ("#/items/pattern", "pattern")


def test_check_passes_what_takes_too_long(monkeypatch):
    monkeypatch.setattr("structout.grammar.native.backend._CHECK_LIMITS", _NO_TIME)
    slow = constraint_of({"type": "string", "not": {"pattern": "(c|d)*c(c|d){13}$"}})
    with pytest.raises(GrammarLimitError, match="cpu_milliseconds"):
        NativeBackend(VOCABULARY, limits=_NO_TIME).compile(slow)
    assert backend().check(slow) == ((), ())


def test_limit_while_decoding_allows_nothing_and_says_why():
    grammar = grammar_of(HARD, limits=_NO_TIME)
    start = mask_of(grammar)
    assert not grammar.error_reason
    assert grammar.accept_tokens("", ids_of("["))
    assert not mask_of(grammar).any()
    assert grammar.error_reason.startswith(_TOO_MUCH_WORK)
    grammar.rollback(1)
    assert not grammar.error_reason
    assert np.array_equal(mask_of(grammar), start)
    assert grammar.accept_tokens("", ids_of("[]"))
    assert not grammar.error_reason


def test_limit_in_a_step_leaves_the_other_rows_alone():
    hard, same, easy = grammar_of(HARD, limits=_NO_TIME), None, grammar_of(OBJECT)
    same = hard.fork()
    assert hard.accept_tokens("", ids_of("["))
    grammars = [easy, hard, same]
    step = native_steps.step_of(grammars, [None, ids_of("[7"), ids_of("[")])
    rows = native_steps.run(step, V)
    assert step.dead_ends == [1]
    assert np.array_equal(rows[0].numpy().view(np.uint32), mask_of(easy))
    assert np.array_equal(rows[int(step.row_indptr[2])].numpy().view(np.uint32), mask_of(same))
    assert hard.error_reason
    assert not easy.error_reason
    assert native_steps.accept(grammars, [ids_of("{"), ids_of("x"), ids_of("[]")]) == [True, False, True]


@pytest.mark.parametrize("has_other_engine", [False, True])
def test_request_that_reaches_a_limit_fails_alone(registered, has_other_engine):
    register_backend("hasty", lambda vocabulary, config, tokenizer: NativeBackend(vocabulary, limits=_NO_TIME))
    config = StructuredOutputsConfig(compile_timeout=60)
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        add(manager, "hard", json=HARD, backend="hasty")
        manager.fork("hard", "same")
        add(manager, "easy", json=OBJECT)
        if has_other_engine:
            add(manager, "other", json=OBJECT, backend="xgrammar")
        assert manager.accept_batch({"hard": ids_of("["), "easy": ids_of("{")}) == {"hard": True, "easy": True}
        names = ["hard", "same", "easy", *(["other"] if has_other_engine else [])]
        batch = manager.grammar_bitmask(names)
        assert list(batch.errors) == ["hard"]
        assert batch.errors["hard"].startswith(_TOO_MUCH_WORK)
        assert manager.status("hard") is GrammarStatus.FAILED
        assert manager.error("hard").kind is GrammarErrorKind.LIMIT
        assert ("hard", GrammarStatus.FAILED) in manager.poll_changed()
        batch = manager.grammar_bitmask(names)
        assert list(batch.errors) == ["hard"]
        assert manager.accept_batch({"hard": ids_of("["), "same": ids_of("[]")}) == {"hard": False, "same": True}
        assert manager.status("same") is manager.status("easy") is GrammarStatus.READY


@pytest.mark.parametrize("batched", [False, True])
def test_request_whose_token_reaches_a_limit_fails(registered, batched):
    register_backend("hasty", lambda vocabulary, config, tokenizer: NativeBackend(vocabulary, limits=_NO_TIME))
    config = StructuredOutputsConfig(compile_timeout=60)
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        add(manager, "hard", json=HARD, backend="hasty")
        add(manager, "easy", json=OBJECT)
        tokens = ids_of("[[7")
        if batched:
            assert manager.accept_batch({"hard": tokens, "easy": ids_of("{")}) == {"hard": False, "easy": True}
        else:
            assert not manager.accept_tokens("hard", tokens)
        assert manager.status("hard") is GrammarStatus.FAILED
        assert str(manager.error("hard")).startswith(_TOO_MUCH_WORK)
        assert manager.status("easy") is GrammarStatus.READY
