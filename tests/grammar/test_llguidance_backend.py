"""All backends through the one interface, and what only llguidance does."""

import contextlib
import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tokenizers_on_the_spot import byte_fallback, byte_level

from structout.bitmask import allocate_token_bitmask, unpack_bitmask
from structout.errors import GrammarError
from structout.grammar.engine_versions import LLGUIDANCE_WHITESPACE_PATTERN, XGRAMMAR_NEGATED_CLASSES, is_at_least
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.fsm.backend import FsmBackend
from structout.grammar.llguidance import matcher as llguidance_matcher
from structout.grammar.llguidance.backend import LlguidanceBackend
from structout.grammar.llguidance.matcher import LlguidanceGrammar
from structout.grammar.llguidance.spec import check_lark
from structout.grammar.llguidance.support import llguidance_support
from structout.grammar.text_patterns import pattern_of_other_texts
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar.backend import XgrammarBackend
from structout.grammar.xgrammar.support import xgrammar_support
from structout.params import Constraint
from structout.params import StructuredOutputOptions as Kind

VOCAB_SIZE = 525  # no multiple of 32, and more than the tokenizers have
BACKENDS = {"llguidance": LlguidanceBackend, "xgrammar": XgrammarBackend, "fsm": FsmBackend}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON_TEXT = '{"name": "Ada", "age": 36}'
_PERSON_REGEX = r'\{"name": "[^"\\]*", "age": -?(0|[1-9]\d*)\}'
# JSON as structout's own engine takes it, without any choice of whitespace.
REGEX_OF_SCHEMA = {
    json.dumps(PERSON): _PERSON_REGEX,
    json.dumps({"type": "array", "items": PERSON}): rf"\[({_PERSON_REGEX}(, {_PERSON_REGEX})*)?\]",
    json.dumps({"type": "string"}): r'"[^"\\]*"',
    json.dumps({"type": "integer"}): r"-?(0|[1-9]\d*)",
}


def make(name, tokenizer=None, **options):
    tokenizer = tokenizer or byte_level()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, VOCAB_SIZE)
    if name == "fsm":
        options.pop("any_whitespace", None)
    return BACKENDS[name](vocabulary, canonical_tokenizer=CanonicalTokenizer(tokenizer, vocabulary), **options)


_made = {}


@pytest.fixture(params=BACKENDS)
def backend(request):
    return _made.setdefault(request.param, make(request.param))


@pytest.fixture
def llguidance():
    return _made.setdefault("llguidance", make("llguidance"))


def spell(backend, text):
    tokens = backend.vocabulary.spell(text)
    assert tokens is not None
    return tokens


def stop(backend):
    return backend.vocabulary.stop_token_ids[0]


def compile_json(backend, schema, **options):
    if isinstance(backend, FsmBackend):
        return backend.compile_grammar(Kind.REGEX, REGEX_OF_SCHEMA[json.dumps(schema)])
    return backend.compile(Constraint(Kind.JSON, json.dumps(schema, ensure_ascii=False), **options)).grammar


def mask_of(backend, grammar):
    bitmask = allocate_token_bitmask(1, backend.vocabulary.size, pin_memory=False)
    grammar.fill_bitmask(bitmask, 0)
    return bitmask[0]


def allowed(backend, grammar):
    is_allowed = unpack_bitmask(mask_of(backend, grammar), backend.vocabulary.size)
    return set(is_allowed.nonzero().flatten().tolist())


def takes(backend, grammar, text):
    """Whether the text and then a stop token would be accepted."""
    tokens = [*spell(backend, text), stop(backend)]
    return len(grammar.validate_tokens(tokens)) == len(tokens)


# -- languages -------------------------------------------------------------------------

LANGUAGES = [
    (Kind.JSON, json.dumps(PERSON), [PERSON_TEXT], ['{"name": "Ada"}', '{"age": 1, "name": "Ada"}', "[]", ""]),
    (Kind.JSON, "true", ['{"a": [1, null]}', '"x"', "7"], ["x", "{a: 1}"]),
    (Kind.JSON_OBJECT, "{}", ['{"a": {"b": 1e5}}', '{"a": [{}, "x"]}'], ["[]", '"x"', "1", "null", "{"]),
    (Kind.REGEX, r"\d{3}-[a-z]+", ["123-abc"], ["12-abc", "123-", "123-ABC", "x123-abc"]),
    (Kind.REGEX, "a*", ["", "aaa"], ["b"]),
    (Kind.CHOICE, '["yes", "no", "yes, but"]', ["yes", "no", "yes, but"], ["ye", "yes,", "maybe", ""]),
    (Kind.CHOICE, '["a\\"b", "é", "\\ud83e\\udd8a", "a\\nb", "/x/"]', ['a"b', "é", "🦊", "a\nb", "/x/"], ["a", "e"]),
]


@pytest.mark.parametrize(("kind", "spec", "members", "others"), LANGUAGES)
def test_grammar_accepts_exactly_its_language(backend, kind, spec, members, others):
    if isinstance(backend, FsmBackend) and kind not in (Kind.REGEX, Kind.CHOICE):
        return
    grammar = backend.compile_grammar(kind, spec)
    for text in members:
        assert takes(backend, grammar, text), text
    for text in others:
        assert not takes(backend, grammar, text), text


def test_compile_grammar_takes_gbnf_in_xgrammar_and_lark_in_llguidance():
    texts = ("1+2", "10", "1+2+3")
    gbnf = make("xgrammar").compile_grammar(Kind.GRAMMAR, 'root ::= n ("+" n)*\nn ::= [0-9]+')
    lark = make("llguidance").compile_grammar(Kind.GRAMMAR, 'start: N ("+" N)*\nN: /[0-9]+/')
    for backend, grammar in (("xgrammar", gbnf), ("llguidance", lark)):
        assert all(takes(make(backend), grammar, text) for text in texts)
        assert not takes(make(backend), grammar, "1+")


@pytest.mark.parametrize("text", ['{"a": 1, "b": [2, 3], "c": {}, "d": []}', '{"a": {"b": "x"}}'])
@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
def test_grammar_without_any_whitespace_writes_json_as_json_dumps(name, text):
    backend = make(name, any_whitespace=False)
    for grammar in (backend.compile_grammar(Kind.JSON_OBJECT, "{}"), compile_json(backend, {"type": "object"})):
        assert takes(backend, grammar, text)
        assert not takes(backend, grammar, text.replace(": ", ":"))
        assert not takes(backend, grammar, text.replace("{", "{ "))


# -- invalid tokens --------------------------------------------------------------------


@pytest.mark.parametrize(
    "token", [-1, VOCAB_SIZE, 2**31, 2**32, 2**40, None, 1.0, "a", torch.tensor([1, 2]), torch.empty(1, device="meta")]
)
def test_accept_tokens_with_an_invalid_id_refuses_and_changes_nothing(backend, token):
    grammar = compile_json(backend, PERSON)
    grammar.accept_tokens("r", spell(backend, '{"name'))
    before = mask_of(backend, grammar)
    assert not grammar.accept_tokens("r", [token])
    assert not grammar.accept_tokens("r", [*spell(backend, '":'), token])
    assert grammar.validate_tokens([*spell(backend, '":'), token]) == spell(backend, '":')
    assert torch.equal(mask_of(backend, grammar), before)
    assert grammar.accept_tokens("r", spell(backend, '": "Ada", "age": 36}'))


@pytest.mark.parametrize("name", BACKENDS)
def test_accept_tokens_with_a_bool_refuses(name):
    grammar = BACKENDS[name](Vocabulary((b"a", b"b", b"c", b""), (3,))).compile_grammar(Kind.REGEX, "[abc]*")
    assert not grammar.accept_tokens("r", [True])
    assert grammar.accept_tokens("r", [1])


def test_check_lark_takes_linear_time():
    for part in ("[", '"', "/", "<", "stop", "x[stop", "stop ", "a\\"):
        start = time.process_time()
        with contextlib.suppress(GrammarError):
            check_lark(part * (1 << 16))
        assert time.process_time() - start < 1, part


def test_mask_never_allows_tokens_without_bytes(backend):
    grammar = compile_json(backend, {"type": "string"})
    grammar.accept_tokens("r", spell(backend, '"a'))
    empty = {i for i, token in enumerate(backend.vocabulary.token_bytes) if not token}
    assert not allowed(backend, grammar) & empty
    assert not any(grammar.accept_tokens("r", [token]) for token in empty)
    assert grammar.accept_tokens("r", spell(backend, '"'))


def test_accept_tokens_after_a_refusal_is_unchanged(backend):
    grammar = compile_json(backend, PERSON)
    before = mask_of(backend, grammar)
    for _ in range(3):
        assert not grammar.accept_tokens("r", spell(backend, '{"nome'))
        assert not grammar.accept_tokens("r", [stop(backend)])
    assert torch.equal(mask_of(backend, grammar), before)
    assert grammar.num_tokens == 0
    assert takes(backend, grammar, PERSON_TEXT)


# -- masks -----------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [byte_level, byte_fallback])
@pytest.mark.parametrize("name", BACKENDS)
def test_mask_equals_the_set_of_accepted_tokens(name, tokenizer):
    backend = make(name, tokenizer())
    grammar = compile_json(backend, PERSON)
    for token in [*spell(backend, PERSON_TEXT), stop(backend)]:
        accepted = {i for i in range(backend.vocabulary.size) if grammar.validate_tokens([i])}
        assert allowed(backend, grammar) == accepted
        assert grammar.accept_tokens("r", [token])
    assert grammar.is_terminated()


def test_mask_of_a_complete_value_allows_stop_tokens_only(backend):
    grammar = compile_json(backend, PERSON)
    grammar.accept_tokens("r", spell(backend, PERSON_TEXT))
    assert not grammar.is_terminated()
    assert allowed(backend, grammar) == set(backend.vocabulary.stop_token_ids)


def test_compile_grammar_with_stop_tokens_uses_them(backend):
    letter = spell(backend, "a")[0]  # has text, and ends it nevertheless
    hole = next(i for i, token in enumerate(backend.vocabulary.token_bytes) if not token and i != stop(backend))
    grammar = backend.compile_grammar(Kind.REGEX, "[ab]{2,3}", [letter, hole])
    assert allowed(backend, grammar) == {spell(backend, "b")[0]}
    assert not grammar.accept_tokens("r", [letter])
    assert grammar.accept_tokens("r", spell(backend, "b") * 2)
    assert allowed(backend, grammar) == {spell(backend, "b")[0], letter, hole}
    assert not grammar.accept_tokens("r", [stop(backend)])
    for token in (letter, hole):
        assert grammar.accept_tokens("r", [token])
        assert grammar.is_terminated()
        grammar.rollback(1)
    assert grammar.copy().validate_tokens([*spell(backend, "bb"), letter]) == [*spell(backend, "bb"), letter]


def test_fill_bitmask_batch_fills_its_rows_and_no_other(backend):
    first, second = compile_json(backend, PERSON), compile_json(backend, {"type": "integer"})
    second.accept_tokens("r", spell(backend, "12"))
    bitmask = allocate_token_bitmask(4, backend.vocabulary.size, pin_memory=False).fill_(5)
    backend.fill_bitmask_batch([first, second], bitmask, [3, 1])
    assert torch.equal(bitmask[3], mask_of(backend, first))
    assert torch.equal(bitmask[1], mask_of(backend, second))
    assert bitmask[[0, 2]].eq(5).all()


def test_fill_bitmask_batch_with_another_backends_grammar_raises(llguidance):
    bitmask = allocate_token_bitmask(1, VOCAB_SIZE, pin_memory=False)
    with pytest.raises(TypeError, match="XgrammarGrammar"):
        llguidance.fill_bitmask_batch([compile_json(make("xgrammar"), PERSON)], bitmask, [0])


@pytest.mark.parametrize(
    ("bitmask", "message"),
    [
        (torch.zeros(2, 17, dtype=torch.int64), "got torch.int64"),
        (torch.zeros(2, 16, dtype=torch.int32), r"\[rows, 17\]"),
        (torch.zeros(17, dtype=torch.int32), r"\[17\]"),
        (torch.zeros(17, 2, dtype=torch.int32).T, "contiguous rows"),
        (torch.zeros(2, 17, dtype=torch.int32, device="meta"), "on meta"),
    ],
)
def test_fill_bitmask_with_a_wrong_buffer_raises(llguidance, bitmask, message):
    with pytest.raises(ValueError, match=message):
        compile_json(llguidance, PERSON).fill_bitmask(bitmask, 0)


@pytest.mark.parametrize("row", [-1, 2])
def test_fill_bitmask_with_a_row_out_of_range_raises(llguidance, row):
    bitmask = allocate_token_bitmask(2, VOCAB_SIZE, pin_memory=False)
    with pytest.raises(IndexError, match=r"\[0, 2\)"):
        compile_json(llguidance, PERSON).fill_bitmask(bitmask, row)


def test_fill_bitmask_with_a_row_stride_fills_one_row(llguidance):
    wide = torch.full((3, 40), 7, dtype=torch.int32)
    grammar = compile_json(llguidance, PERSON)
    grammar.fill_bitmask(wide[:, 10:27], 1)
    assert torch.equal(wide[1, 10:27], mask_of(llguidance, grammar))
    assert wide[[0, 2]].eq(7).all()
    assert wide[:, :10].eq(7).all()
    assert wide[:, 27:].eq(7).all()


# -- termination and rollback ----------------------------------------------------------


def test_accept_tokens_after_a_stop_token_accepts_everything(backend):
    grammar = compile_json(backend, PERSON)
    text = spell(backend, PERSON_TEXT)
    assert grammar.accept_tokens("r", [*text, stop(backend), 5, -1])
    assert grammar.accept_tokens("r", [None, 2**40])
    assert grammar.is_terminated()
    assert grammar.num_tokens == len(text) + 5
    assert grammar.forced_bytes() == b""
    assert grammar.compute_ff_tokens() == []
    grammar.rollback(4)
    assert grammar.is_terminated()
    grammar.rollback(1)
    assert not grammar.is_terminated()
    assert allowed(backend, grammar) == {stop(backend)}
    assert grammar.accept_tokens("r", [stop(backend)])


def test_rollback_restores_masks_at_every_position(backend):
    grammar = compile_json(backend, PERSON)
    tokens = [*spell(backend, PERSON_TEXT), stop(backend), 3, 3]
    masks = []
    for token in tokens:
        masks.append(None if grammar.is_terminated() else mask_of(backend, grammar))
        assert grammar.accept_tokens("r", [token])
    for back in range(1, len(tokens) + 1):
        grammar.rollback(back)
        position = len(tokens) - back
        assert grammar.num_tokens == position
        assert grammar.is_terminated() == (masks[position] is None)
        if masks[position] is not None:
            assert torch.equal(mask_of(backend, grammar), masks[position])
        assert grammar.accept_tokens("r", tokens[position:])


@pytest.mark.parametrize("num_tokens", [-1, 3])
def test_rollback_beyond_the_start_raises_and_changes_nothing(llguidance, num_tokens):
    grammar = compile_json(llguidance, PERSON)
    grammar.accept_tokens("r", spell(llguidance, '{"')[:2])
    with pytest.raises(ValueError, match="cannot roll back"):
        grammar.rollback(num_tokens)
    assert grammar.num_tokens <= 2
    grammar.reset()
    assert takes(llguidance, grammar, PERSON_TEXT)


def test_reset_copy_and_fork_are_independent(backend):
    grammar = compile_json(backend, PERSON)
    start = mask_of(backend, grammar)
    grammar.accept_tokens("r", spell(backend, '{"name": "A'))
    here = mask_of(backend, grammar)
    fork, copy = grammar.fork(), grammar.copy()
    assert torch.equal(mask_of(backend, copy), start)
    assert torch.equal(mask_of(backend, fork), here)
    assert fork.accept_tokens("r", spell(backend, 'da", "age": 1}'))
    assert fork.accept_tokens("r", [stop(backend)])
    assert fork.fork().is_terminated()
    assert torch.equal(mask_of(backend, grammar), here)
    fork.reset()
    assert not fork.is_terminated()
    assert fork.num_tokens == 0
    assert torch.equal(mask_of(backend, fork), start)


def test_fill_bitmask_drafts_does_not_move_the_grammar(backend):
    grammar = compile_json(backend, PERSON)
    drafts = [*spell(backend, PERSON_TEXT), stop(backend), 7]
    bitmask = allocate_token_bitmask(len(drafts) + 1, backend.vocabulary.size, pin_memory=False)
    assert grammar.fill_bitmask_drafts(bitmask, 0, drafts) >= len(drafts) - 1
    assert bitmask[-2:].eq(-1).all()
    assert grammar.num_tokens == 0


def test_copies_in_many_threads_give_the_same_masks(backend):
    """They share what was compiled, including llguidance's lexer, which keeps
    growing."""
    grammar = compile_json(backend, {"type": "array", "items": PERSON})
    tokens = [*spell(backend, "[" + ", ".join([PERSON_TEXT] * 5) + "]"), stop(backend)]

    def follow(_):
        copy = grammar.copy()
        masks = []
        for token in tokens:
            masks.append(mask_of(backend, copy))
            copy.compute_ff_tokens()
            assert copy.accept_tokens("r", [token])
        return torch.stack(masks)

    expected = follow(0)
    with ThreadPoolExecutor(16) as pool:
        assert all(torch.equal(masks, expected) for masks in pool.map(follow, range(48)))


# -- forced text -----------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
def test_compute_ff_tokens_returns_canonical_tokens_of_the_forced_text(name):
    backend = make(name, any_whitespace=False)
    grammar = compile_json(backend, PERSON)
    assert grammar.find_jump_forward_string() == '{"name": "'
    before = mask_of(backend, grammar)
    tokens = grammar.compute_ff_tokens()
    text = backend.vocabulary.text_of(tokens)
    assert text
    assert '{"name": "'.startswith(text)
    assert tokens == byte_level().encode('{"name": "Ada", "age": 36}')[: len(tokens)]
    assert torch.equal(mask_of(backend, grammar), before)
    assert grammar.num_tokens == 0
    assert grammar.accept_tokens("r", tokens)


def test_forced_bytes_where_there_is_a_choice_is_empty(backend):
    grammar = backend.compile_grammar(Kind.CHOICE, '["ab", "cd"]')
    assert grammar.forced_bytes() == b""
    assert grammar.compute_ff_tokens() == []
    grammar.accept_tokens("r", spell(backend, "a"))
    assert grammar.forced_bytes() == b"b"


def test_compute_ff_tokens_of_special_text_spells_it(llguidance):
    grammar = llguidance.compile_grammar(Kind.CHOICE, '["<|im_end|><|im_end|>"]')
    tokens = grammar.compute_ff_tokens()
    assert all(llguidance.vocabulary.token_bytes[token] for token in tokens)
    assert grammar.accept_tokens("r", tokens)


def test_compute_ff_tokens_without_a_tokenizer_raises():
    backend = LlguidanceBackend(Vocabulary.from_tokenizer(byte_level(), VOCAB_SIZE))
    grammar = backend.compile_grammar(Kind.CHOICE, '["abc"]')
    assert grammar.forced_bytes() == b"abc"
    with pytest.raises(RuntimeError, match="needs the tokenizer"):
        grammar.compute_ff_tokens()


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (Kind.JSON, "false"),
        (Kind.JSON, '{"$ref": "#"}'),
        (Kind.JSON, '{"enum": []}'),
        (Kind.JSON, '{"type": "foo"}'),
        (Kind.JSON, '{"type": "string", "pattern": "["}'),
        (Kind.JSON, '{"$ref": "#/$defs/missing"}'),
        (Kind.REGEX, "("),
        (Kind.REGEX, r"[^\s\S]"),
        (Kind.GRAMMAR, "neither of the two"),
    ],
)
def test_compile_grammar_with_a_malformed_or_impossible_constraint_raises(backend, kind, spec):
    is_old = isinstance(backend, XgrammarBackend) and not is_at_least("xgrammar", XGRAMMAR_NEGATED_CLASSES)
    if is_old and spec == r"[^\s\S]":
        assert not xgrammar_support(Constraint(kind, spec)).enforces
        return
    with pytest.raises(GrammarError):
        backend.compile_grammar(kind, spec)


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        (Kind.JSON, '{"not": {"type": "string"}}', 'keywords that are not supported: "not"'),
        (Kind.REGEX, "(?=a)ab", "may not use lookaround"),
        (Kind.GRAMMAR, "start: start", "allows no text at all|NoExtension"),
        (Kind.GRAMMAR, 'start: "a" <|im_start|>', "reference to the token"),
        (Kind.GRAMMAR, "start: <[5]>", "reference to the token"),
        (Kind.GRAMMAR, 'start: x "b"\nx[max_tokens=3]: /a+/', "max_tokens"),
        (Kind.GRAMMAR, 'start: x "b"\nx[capture, stop="b"]: /a+/', "stop"),
        (Kind.GRAMMAR, 'start: x "b"\nx[capture,\n stop\n="b"]: /a+/', "stop of a Lark rule is not supported"),
        (Kind.GRAMMAR, 'start: %json {"x-guidance": {"lenient": true}, "not": {}}', "does not enforce all"),
        (Kind.STRUCTURAL_TAG, "{}", "no structural tags"),
    ],
)
def test_llguidance_with_an_unsupported_constraint_raises_with_the_cause(llguidance, kind, spec, message):
    with pytest.raises(GrammarError, match=message):
        llguidance.compile_grammar(kind, spec)


@pytest.mark.parametrize("text", ['start: "<a>" // <[5]>', 'start: "a" "x[stop]" /<b>/', 'start: "\\"<a>"'])
def test_check_lark_does_not_read_text_as_tokens(llguidance, text):
    llguidance.compile_grammar(Kind.GRAMMAR, text)


def test_compile_with_lenient_lists_what_is_not_enforced(llguidance):
    schema = {"type": "integer", "not": {"const": 3}}
    grammar = compile_json(llguidance, schema, lenient=True)
    assert grammar.weakened == ('Unimplemented keys: ["not"]',)
    assert takes(llguidance, grammar, "3")
    assert compile_json(llguidance, PERSON, lenient=True).weakened == ()


def test_compile_ignores_llguidance_options_in_a_schema(llguidance):
    with pytest.raises(GrammarError, match="not supported"):
        compile_json(llguidance, {"not": {}, "x-guidance": {"lenient": True}})


def test_escaped_property_name_does_not_bypass_its_schema(llguidance):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    grammar = compile_json(llguidance, schema)
    assert takes(llguidance, grammar, '{"a": 1, "b": "x"}')
    assert not takes(llguidance, grammar, '{"\\u0061": "x"}')
    assert not takes(llguidance, grammar, '{"a": 1, "\\u0061": "x"}')


@pytest.mark.parametrize("texts", [["a"], ["a", "abc"], ["", "é\n", "é"], ["]^-[&~\\", "]", "x" * 100], ["a.c", "a"]])
def test_pattern_of_other_texts_matches_all_but_these_texts(texts):
    pattern = re.compile(pattern_of_other_texts(texts))
    near = {text[:end] + more for text in texts for end in range(len(text) + 1) for more in ("", "a", "]", "é", "\n")}
    for text in {*near, *texts, "", "b", "東"}:
        assert bool(pattern.fullmatch(text)) == (text not in texts), text


def test_compile_with_an_unknown_draft_reads_the_newest(llguidance):
    grammar = compile_json(llguidance, {"$schema": "https://example.com/mine", "const": 1})
    assert takes(llguidance, grammar, "1")


@pytest.mark.parametrize(
    ("pattern", "members", "others"),
    [
        (" ?", ['{"a":1}', '{ "a" : 1 }'], ['{  "a":1}', '{\n"a":1}']),
        ("[\n\t ]*", ['{"a":1}', '{\n\n\n"a":1}'], ['{\r"a":1}']),
        (r"\s{0,2}", ['{\n\n"a":1}', '{"a":1}'], ['{\n\n\n"a":1}']),
    ],
)
def test_whitespace_pattern_bounds_whitespace_or_is_weakened(llguidance, pattern, members, others):
    grammar = compile_json(llguidance, {"type": "object"}, whitespace_pattern=pattern)
    assert all(takes(llguidance, grammar, text) for text in members)
    if is_at_least("llguidance", LLGUIDANCE_WHITESPACE_PATTERN):
        assert not any(takes(llguidance, grammar, text) for text in others)
    else:
        support = llguidance_support(Constraint(Kind.JSON, "{}", whitespace_pattern=pattern))
        assert support.weakened == ("whitespace_pattern",)


@pytest.mark.parametrize("pattern", ["x", "[ x]*", "(", "\u00a0", "."])
def test_whitespace_pattern_with_other_characters_raises(llguidance, pattern):
    with pytest.raises(GrammarError, match="whitespace_pattern"):
        compile_json(llguidance, {"type": "object"}, whitespace_pattern=pattern)


def test_whitespace_pattern_with_a_regex_raises(llguidance):
    with pytest.raises(GrammarError, match="applies to json only"):
        llguidance.compile(Constraint(Kind.REGEX, "a", whitespace_pattern=" "))


def test_mask_of_a_matcher_in_error_allows_nothing(llguidance):
    """llguidance gives it the mask of a complete text, so that the model would stop too
    early."""
    grammar = compile_json(llguidance, PERSON)
    grammar.accept_tokens("r", spell(llguidance, '{"name'))
    grammar.matcher.consume_token(stop(llguidance))  # an error that it keeps
    assert grammar.matcher.is_error()
    assert not mask_of(llguidance, grammar).any()
    assert "stop" in grammar.error_reason or "token" in grammar.error_reason
    assert not grammar.accept_tokens("r", spell(llguidance, '"'))
    grammar.rollback(1)
    assert takes(llguidance, grammar, PERSON_TEXT[len('{"nam') :])
    assert not grammar.error_reason


MANY_STATES = "[ab]*a[ab]{20}"  # another state of the lexer for almost every token


@pytest.fixture
def few_states(monkeypatch):
    monkeypatch.setattr(llguidance_matcher, "_MIN_STATES", 300)
    monkeypatch.setattr(llguidance_matcher, "_MAX_STATES", 2_400)


def random_text(llguidance, num_tokens, seed):
    letters = spell(llguidance, "ab")
    return random.Random(seed).choices(letters, k=num_tokens)


@pytest.mark.usefixtures("few_states")
def test_mask_after_others_exhausted_the_lexer_is_unchanged(llguidance):
    first = llguidance.compile_grammar(Kind.REGEX, MANY_STATES)
    waiting = first.copy()
    expected = allowed(llguidance, first)
    assert first.accept_tokens("r", random_text(llguidance, 20, seed=0))
    forked = first.fork()
    for seed in range(60):
        grammar = first.copy()
        for token in random_text(llguidance, 100, seed):
            assert token in allowed(llguidance, grammar)
            assert grammar.accept_tokens("r", [token])
    assert allowed(llguidance, waiting) == expected
    for grammar in (first, forked):
        assert grammar.accept_tokens("r", random_text(llguidance, 100, seed=1))
        assert takes(llguidance, grammar, "a" * 21)
        grammar.rollback(119)
        assert grammar.num_tokens == 1
        assert grammar.fork().accept_tokens("r", random_text(llguidance, 100, seed=2))
        assert not grammar.error_reason


@pytest.mark.usefixtures("few_states")
def test_fill_bitmask_drafts_with_an_exhausted_lexer_replaces_it(llguidance):
    first = llguidance.compile_grammar(Kind.REGEX, MANY_STATES)
    bitmask = allocate_token_bitmask(201, llguidance.vocabulary.size, pin_memory=False)
    for seed in range(20):
        grammar = first.copy()
        drafts = random_text(llguidance, 200, seed)
        assert grammar.fill_bitmask_drafts(bitmask, 0, drafts) == 200
        assert grammar.num_tokens == 0
        assert all(int(bitmask[i, token >> 5]) >> (token & 31) & 1 for i, token in enumerate(drafts))


@pytest.mark.usefixtures("few_states")
def test_fill_bitmask_drafts_batch_with_an_exhausted_lexer_replaces_it(llguidance):
    first = llguidance.compile_grammar(Kind.REGEX, MANY_STATES)
    bitmask = allocate_token_bitmask(10 * 51, llguidance.vocabulary.size, pin_memory=False)
    for seed in range(0, 80, 10):
        grammars = [first.copy() for _ in range(10)]
        drafts = [random_text(llguidance, 50, seed + i) for i in range(10)]
        counts = llguidance.fill_bitmask_drafts_batch(grammars, bitmask, range(0, 510, 51), drafts)
        assert counts == [50] * 10
        for i, tokens in enumerate(drafts):
            rows = bitmask[51 * i : 51 * (i + 1)]
            assert all(int(rows[j, token >> 5]) >> (token & 31) & 1 for j, token in enumerate(tokens))
            assert grammars[i].num_tokens == 0


def test_lexer_grows_if_one_step_needs_more_states(llguidance, monkeypatch):
    monkeypatch.setattr(llguidance_matcher, "_MIN_STATES", 2)
    grown = llguidance.compile_grammar(Kind.CHOICE, json.dumps([f"{i:04d}" * 5 for i in range(300)]))
    assert takes(llguidance, grown, "0123" * 5)
    assert mask_of(llguidance, grown).any()
    assert grown.memory_bytes > llguidance.compile_grammar(Kind.REGEX, "a").memory_bytes


@pytest.mark.usefixtures("few_states")
def test_mask_beyond_the_largest_lexer_is_empty_with_a_reason(llguidance, monkeypatch):
    monkeypatch.setattr(llguidance_matcher, "_MAX_STATES", 300)
    expected = allowed(llguidance, llguidance.compile_grammar(Kind.REGEX, MANY_STATES))
    grammar = llguidance.compile_grammar(Kind.REGEX, MANY_STATES)
    assert grammar.validate_tokens(random_text(llguidance, 1_000, seed=0))
    grammar.accept_tokens("r", random_text(llguidance, 250, seed=0))
    while mask_of(llguidance, grammar).any():
        grammar.accept_tokens("r", random_text(llguidance, 1, seed=grammar.num_tokens))
    assert not mask_of(llguidance, grammar).any()
    assert "too many states" in grammar.error_reason
    assert not grammar.accept_tokens("r", random_text(llguidance, 1, seed=0))
    grammar.reset()
    assert allowed(llguidance, grammar) == expected
    assert not grammar.error_reason


@pytest.mark.usefixtures("few_states")
def test_exhausted_lexer_in_many_threads_is_replaced(llguidance):
    first = llguidance.compile_grammar(Kind.REGEX, MANY_STATES)

    def follow(seed):
        grammar = first.copy()
        for token in random_text(llguidance, 100, seed):
            assert mask_of(llguidance, grammar).any()
            assert grammar.accept_tokens("r", [token])
        return grammar.num_tokens

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(follow, range(40))) == {100}


def test_fill_bitmask_drafts_when_the_engine_raises_rolls_back(llguidance, monkeypatch):
    grammar = compile_json(llguidance, PERSON)
    bitmask = allocate_token_bitmask(8, llguidance.vocabulary.size, pin_memory=False)
    fill_row = LlguidanceGrammar.fill_row

    def raise_later(self, buffer, row):
        if row == 3:
            raise RuntimeError("of the engine")
        fill_row(self, buffer, row)

    monkeypatch.setattr(LlguidanceGrammar, "fill_row", raise_later)
    with pytest.raises(RuntimeError, match="of the engine"):
        grammar.fill_bitmask_drafts(bitmask, 0, spell(llguidance, '{"name"')[:7])
    assert grammar.num_tokens == 0
    assert takes(llguidance, grammar, PERSON_TEXT)


def test_memory_bytes_is_estimated(backend):
    assert compile_json(backend, PERSON).memory_bytes > 1_000


@pytest.mark.parametrize("stops", [[0], [0, 1], [1], [70, 0]])
@pytest.mark.parametrize("text", ["", "a", "aa"])
def test_mask_allows_all_stop_tokens_or_none(llguidance, stops, text):
    grammars = [llguidance.compile_grammar(Kind.REGEX, "a{1,2}[a-z]?", each) for each in (None, stops)]
    for grammar in grammars:
        assert grammar.accept_tokens("r", spell(llguidance, text))
    usual, own = (allowed(llguidance, grammar) for grammar in grammars)
    assert own == usual - {stop(llguidance)} - set(stops) | (set(stops) if stop(llguidance) in usual else set())
