"""Grammars with recursion on structout's own engine: masks, names of states, memory,
limits and ways to the end."""

import random
import re
import statistics
import subprocess
import time

import numpy as np
import pytest

from structout import StructuredOutputsConfig, StructuredOutputsParams
from structout.constraints.params import StructuredOutputOptions as Kind
from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError
from structout.grammar.native.automaton import AutomatonLimits
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.extension import core
from structout.grammar.native.grammars import compile_grammar, parse_grammar
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask
from support.builds import SANITIZED, compiled_engine
from support.grammar_cases import program_vocabulary
from support.grammar_walks import BYTES, allowed, mask_of, started, walk
from support.locations import CORPUS, NATIVE, ROOT

NESTED = 'root ::= "(" root ")" | [a-c]+'
LISTS = 'root ::= item ("," item)*\nitem ::= "(" root ")" | "[" root "]" | "a"'
AMBIGUOUS = ['root ::= s\ns ::= s s | "a"', 'root ::= s\ns ::= s s s | s s | "a" | "(" s ")"']
VERY_AMBIGUOUS = [
    'root ::= a b | ")"\nb ::= ")" | b a | root\na ::= b | b root "a" | c root b | "+" | ""\nc ::= "a" "b"',
    'root ::= "x" "(" | "(" root | r "(a"\nr ::= r root | "b" r | "x" | ""',
]


@pytest.fixture(scope="module")
def texts():
    return program_vocabulary()


# calls.lark has a JSON schema inside, chess.gbnf is a regular language.
RECURSIVE = [
    path
    for path in sorted((CORPUS / "grammars").iterdir())
    if path.suffix in (".gbnf", ".lark") and path.name not in ("calls.lark", "chess.gbnf")
]


@pytest.mark.parametrize("path", RECURSIVE, ids=lambda path: path.name)
def test_mask_of_partial_masks_is_that_of_a_walk_over_whole_stacks(path, texts, num_cases):
    index = compile_grammar(path.read_text(), texts)
    rng = random.Random(path.name)
    num_masks = 0
    for _ in range(num_cases(4, long=200)):
        grammar = started(index, texts)
        for mask in walk(grammar, texts, rng, 30):
            walked = np.array(grammar.matcher.walked_row(), dtype=np.uint32)
            stop = texts.stop_token_ids[0]
            mask[stop >> 5] &= ~np.uint32(1 << (stop & 31))
            assert np.array_equal(mask, walked)
            num_masks += 1
    assert num_masks >= 10


@pytest.mark.parametrize("path", RECURSIVE, ids=lambda path: path.name)
def test_random_text_never_gets_stuck_and_ends_with_its_shortest_completion(path, texts, num_cases):
    index = compile_grammar(path.read_text(), texts)
    rng = random.Random(path.name)
    for _ in range(num_cases(5, long=350)):
        grammar = started(index, texts)
        for mask in walk(grammar, texts, rng, rng.randint(0, 25)):
            assert mask.any()
        rest = grammar.shortest_end()
        assert rest is not None
        assert grammar.accept_tokens("r", [*rest, texts.stop_token_ids[0]])
        assert grammar.is_terminated()


def test_shortest_end_is_a_shortest_text():
    grammar = started(compile_grammar('root ::= "(" root ")" | "abc" | "[" "]"', BYTES))
    assert grammar.shortest_end() == b"[]"
    assert grammar.accept_tokens("r", [*b"((a"])
    assert grammar.shortest_end() == b"bc))"


# -- names -----------------------------------------------------------------------------


def test_places_with_equal_stacks_have_one_state_and_depth_adds_no_masks():
    index = compile_grammar(NESTED, BYTES)
    short, long = started(index), started(index)
    assert short.accept_tokens("r", [*b"((ab"])
    assert long.accept_tokens("r", [*b"((abcabc"])
    assert short.state_id() == long.state_id()
    assert short.accept_tokens("r", [*b"))"])
    assert short.state_id() != long.state_id()
    deep = started(index)
    masks = set()
    for byte in b"(" * 1_000 + b"ab" + b")" * 1_000:
        masks.add(mask_of(deep).tobytes())
        assert deep.accept_tokens("r", [byte])
    assert len(masks) == 3  # in front of a word, inside it, and after a bracket
    assert index.num_masks == 3


def test_repetition_by_recursion_at_the_end_of_a_rule_needs_no_deeper_stack():
    """The rule's call of itself is a tail call."""
    index = compile_grammar('root ::= list\nlist ::= item "," list | item\nitem ::= "(" item ")" | "x"', BYTES)
    grammar = started(index)
    assert grammar.accept_tokens("r", [*b"x,x,"])
    num_states = index.num_states
    assert grammar.accept_tokens("r", [*(b"x," * 1_000)])
    assert index.num_states == num_states


def test_mask_of_a_new_place_under_known_states_takes_little_work(texts):
    """What tokens do from the states on top of the stacks is found once."""
    index = compile_grammar((CORPUS / "grammars" / "java_like.lark").read_text(), texts)
    grammar, work = started(index, texts), []
    assert grammar.accept_bytes(b"class A { int x = f(")
    for _ in range(30):
        assert grammar.accept_bytes(b"1 + g(")
        states, before = index.num_states, index.native.work
        mask_of(grammar)
        work.append(index.native.work - before)
        assert index.num_states == states  # of the place, made by its last byte
    assert max(work[5:]) < 200


# -- memory and limits -----------------------------------------------------------------


def small_index(grammar, max_growth):
    rules = parse_grammar(grammar)
    index = CompiledGrammar(rules, BYTES)
    trie = BYTES.trie
    index.native = core().CompiledGrammar(rules.network(trie), rules.limits.native, trie, max_growth=max_growth)
    return index


def test_long_text_takes_bounded_memory(num_cases):
    """Brackets of two kinds make stacks of many forms, so that most states are new."""
    index = small_index(LISTS, max_growth=50_000)
    grammar, rng = started(index), random.Random(1)
    most, num_moves, num_bytes, open_brackets = 0, 0, 0, []
    for _ in range(num_cases(10_000, long=400_000)):
        if rng.random() < 0.5 and len(open_brackets) < 40:
            open_brackets.append(rng.choice([b"()", b"[]"]))
            step = open_brackets[-1][:1]
        else:
            step = b"a" + (open_brackets.pop()[1:] if open_brackets else b"") + b","
        assert grammar.accept_tokens("r", [*step])
        num_moves += index.memory_bytes < num_bytes  # only then states are given back
        num_bytes = index.memory_bytes
        most = max(most, num_bytes)
    assert num_moves > 1
    assert most < 2_000_000 + 50 * grammar.num_tokens


def test_text_that_has_moved_to_new_states_goes_on_as_before():
    index, reference = small_index(NESTED, max_growth=1), started(compile_grammar(NESTED, BYTES))
    grammar = started(index)
    fork = None
    for i, byte in enumerate(b"((((ab)"):
        assert grammar.accept_tokens("r", [byte])
        assert reference.accept_tokens("r", [byte])
        assert np.array_equal(mask_of(grammar), mask_of(reference))
        if i == 3:
            fork = grammar.fork()
    grammar.rollback(4)
    reference.rollback(4)
    assert np.array_equal(mask_of(grammar), mask_of(reference))
    assert grammar.accept_tokens("r", [*b"c)))", 256])
    assert fork.accept_tokens("r", [*b"c))))", 256])


@pytest.mark.parametrize("grammar", AMBIGUOUS)
def test_ambiguous_text_costs_as_much_at_its_end_as_at_its_beginning(grammar):
    text = started(compile_grammar(grammar, BYTES))
    work = []
    for _ in range(2_000):
        before = text.index.native.work
        mask_of(text)
        assert text.accept_tokens("r", [*b"a"])
        work.append(text.index.native.work - before)
    assert max(work[1_000:]) <= 1.5 * max(work[10:100])
    assert max(work[1_000:]) < 100


@pytest.mark.parametrize("grammar", VERY_AMBIGUOUS)
def test_very_ambiguous_text_takes_little_work_at_any_length(grammar, num_cases):
    """Merged in all levels, the stacks of these texts would be exponential."""
    text, rng, work = started(compile_grammar(grammar, BYTES)), random.Random(1), []
    while text.num_tokens < num_cases(2_000, long=10_000):
        before = text.index.native.work
        tokens = allowed(mask_of(text))
        assert text.accept_tokens("r", [int(rng.choice([token for token in tokens if token != 256]))]), (
            text.error_reason
        )
        work.append(text.index.native.work - before)
        if text.num_tokens % 500 == 0:
            walked = allowed(np.array(text.matcher.walked_row(), dtype=np.uint32))
            assert [token for token in allowed(mask_of(text)) if token != 256] == walked
    assert statistics.median(work[-1_000:]) < 500
    assert max(work) < 20_000


def test_depth_of_json_adds_no_work(num_cases):
    text = started(compile_grammar((CORPUS / "grammars" / "json.gbnf").read_text(), BYTES))
    depth, work = num_cases(2_000, long=20_000), []
    for byte in b"[" * depth + b"]" * depth:
        before = text.index.native.work
        mask_of(text)
        assert text.accept_tokens("r", [byte])
        work.append(text.index.native.work - before)
    for half in (work[:depth], work[depth:]):
        assert statistics.median(half[-500:]) <= statistics.median(half[:500])
    assert text.accept_tokens("r", [256])


def test_text_that_exceeds_a_limit_disturbs_no_other():
    grammar = 'root ::= a\na ::= b a b | c\nb ::= a c a | "a"\nc ::= a b | "a" c | "a"'
    index = compile_grammar(grammar, BYTES)
    hungry, other = started(index), started(index)
    assert other.accept_tokens("r", [*b"aaa"])
    slowest, is_accepted = 0.0, True
    while is_accepted and hungry.num_tokens < 2_000:
        start = time.thread_time()
        is_accepted = hungry.accept_tokens("r", [*b"a"])
        slowest = max(slowest, time.thread_time() - start)
    assert "limited to" in hungry.error_reason
    assert slowest < 0.5
    assert other.accept_tokens("r", [*b"a", 256])


def test_limits_of_a_grammar_are_those_that_were_given():
    wide = 'root ::= "(" root ")" | ' + " | ".join(f'"{i:05}"' for i in range(500))
    with pytest.raises(GrammarLimitError, match="pattern_states is limited to 50"):
        compile_grammar(wide, BYTES, AutomatonLimits(states=50))


# -- dead ends -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "<" TEXT ">" | "(" start ")"\nTEXT: /[^<]+/',
        "start: A start B | A B\nA: /a+/\nB: /ab/",
        'start: a "b" "c"\na: a* | T\nT: "bc"',
        'root ::= "(" root ")"',
        'root ::= a "x"\na ::= b "y"\nb ::= a',
    ],
)
def test_grammar_without_a_text_is_impossible(grammar):
    with pytest.raises(GrammarError, match="allows no text at all") as caught:
        NativeBackend(BYTES).compile_grammar(Kind.GRAMMAR, grammar)
    assert caught.value.kind is GrammarErrorKind.IMPOSSIBLE


def test_alternative_from_which_a_greedy_lexer_finds_no_end_is_not_begun():
    index = compile_grammar('start: "<" TEXT ">" | "(" start ")" | "x"\nTEXT: /[^<]+/', BYTES)
    grammar = started(index)
    assert sorted(bytes(allowed(mask_of(grammar)))) == sorted(b"(x")
    assert grammar.accept_tokens("r", [*b"((x))", 256])


def test_bytes_that_the_vocabulary_lacks_make_rules_unproductive():
    tokens = (b"(", b")", b"x", b"yz", b"")
    vocabulary = Vocabulary(tokens, stop_token_ids=(4,))
    index = compile_grammar('root ::= "(" root ")" | "x" | "y" "q" | "[" root "]"', vocabulary)
    assert allowed(mask_of(started(index, vocabulary))) == [0, 2]


# -- what else a grammar does ----------------------------------------------------------


def test_forced_bytes_are_those_that_must_follow():
    grammar = started(compile_grammar('root ::= "(" root ")" | "abc"', BYTES))
    assert grammar.forced_bytes() == b""
    assert grammar.accept_tokens("r", [*b"(a"])
    assert grammar.forced_bytes() == b"bc)"


def test_drafts_fill_a_row_for_each_and_stop_at_the_first_that_is_not_allowed():
    grammar = started(compile_grammar(NESTED, BYTES))
    assert grammar.accept_tokens("r", [*b"("])
    mask = allocate_token_bitmask(5, BYTES.size, pin_memory=False)
    assert grammar.fill_bitmask_drafts(mask, 0, [*b"a)x)"]) == 2
    other = started(grammar.index)
    for row, text in enumerate([b"(", b"(a", b"(a)", b"(a)", b"(a)"]):
        assert other.accept_tokens("r", [*text])
        assert np.array_equal(mask.numpy()[row].view(np.uint32), mask_of(other))
        other.reset()


def test_auto_serves_recursive_grammars_with_the_own_engine():
    backends = BackendSet(BYTES, StructuredOutputsConfig())
    for grammar in (NESTED, 'start: "(" start ")" | /[a-c]+/'):
        assert backends.compile(StructuredOutputsParams(grammar=grammar).constraint()).backend_name == "native"


# -- the overview of the sources -------------------------------------------------------


def test_nodes_along_a_text_are_those_of_the_overview():
    tokens = (b"(", b")", b"a", b"((", b"a)", b"))", b"a))", b"ab", b"b", b"")
    vocabulary = Vocabulary(tokens, stop_token_ids=(9,))
    overview = (ROOT / "csrc" / "README.md").read_text()
    rows = re.findall(r"^\| (?:`([()a]+)`)? ?\| (\(.*?\)) \|", overview, re.MULTILINE)
    assert [text for text, _ in rows] == ["", "(", "((", "((a", "((a)", "((a))"]
    grammar = started(compile_grammar('root ::= "(" root ")" | [ab]+', vocabulary), vocabulary)
    for text, items in rows:
        grammar.reset()
        assert grammar.accept_bytes(text.encode())
        written = re.findall(r"\((\S+), (\d+)\)", items.replace("−", "-"))
        assert grammar.matcher.stack_tops == [(int(state), int(below)) for state, below in written]
    index = compile_grammar('root ::= "(" root ")" | [ab]+', vocabulary)
    grammar, num_partial_masks = started(index, vocabulary), []
    for token in (0, 0, 2, 1):
        mask_of(grammar)
        num_partial_masks.append(index.native.num_partial_masks)
        assert grammar.accept_tokens("r", [token])
    assert num_partial_masks[3] - num_partial_masks[2] == 3  # after "((a"


def test_states_along_a_json_text_are_those_of_the_overview():
    overview = (ROOT / "csrc" / "README.md").read_text()
    schema = re.search(r"```json\n(.*?)```", overview, re.DOTALL)[1]
    rows = re.findall(r"^\| (?:`(\{[^`]*)`)? ?\| ([\d, none]+) \|", overview, re.MULTILINE)
    assert len(rows) == 7
    for text, states in rows:
        grammar = NativeBackend(BYTES).compile_grammar(Kind.JSON, schema)
        seen = [grammar.state_id()]
        for byte in text.encode():
            assert grammar.accept_tokens("r", [byte])
            seen.append(grammar.state_id())
        none = 2**32 - 1
        assert seen[-1] == tuple(none if state == "none" else int(state) for state in states.split(", "))


# -- sanitizers ------------------------------------------------------------------------


def test_fuzzed_grammars_have_no_memory_error_and_no_undefined_behaviour(request):
    if not request.config.getoption("--long"):
        pytest.skip("building grammars with sanitizers takes minutes: make test-all")
    program = compiled_engine("grammar_fuzz", NATIVE / "grammar_fuzz.cpp", SANITIZED)
    # `make soak ONLY=nested` reads more of them, without sanitizers.
    result = subprocess.run([program, "23", "1500", "100"], capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr[-3_000:]
    num_with_texts, num_refused = map(int, result.stdout.split())
    assert num_with_texts > 500
    assert num_refused > 30
