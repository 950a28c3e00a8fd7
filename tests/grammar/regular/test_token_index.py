"""Token indices of structout's own engine: against every token from every state, and
against llguidance."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from structout import StructuredOutputManager, StructuredOutputsParams
from structout.constraints.params import StructuredOutputOptions as Kind
from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.native import extension
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.token_index import TokenIndex
from structout.grammar.vocabulary import Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask
from support.grammar_walks import allowed, mask_of
from support.llguidance_backend import LlguidanceBackend
from support.random_patterns import random_pattern
from support.tokenizers_on_the_spot import byte_fallback, byte_level
from support.willard_louf import find_sub_sequences, map_states_to_vocab


def odd_vocabulary():
    """Without some bytes, with tokens of equal bytes, of parts of characters, and with
    stop tokens that have text."""
    rng = random.Random(1)
    texts = [bytes([byte]) for byte in range(256) if byte not in b"bZ7-\x9f"]
    texts += [
        rng.choice([b"ab", b"b1", b"\xc3", b"\xc3\xa9", b'"}', b"7-", b"", b"abab", b"\x9f\xa6"]) for _ in range(60)
    ]
    texts += [bytes(rng.choices(b"abcxyz019 -_", k=rng.randint(2, 5))) for _ in range(200)]
    return Vocabulary(tuple(texts), (3, 300))


VOCABULARIES = {
    "byte_level": lambda: Vocabulary.from_tokenizer(byte_level(), 525),
    "byte_fallback": lambda: Vocabulary.from_tokenizer(byte_fallback(), 525),
    "odd": odd_vocabulary,
}
PATTERNS = [
    "",
    "a|ab|abc",
    "cat|catnip",
    "a(ba)*",
    "[ab]{2,5}",
    r"\d{3}-\d{4}",
    "[a-z0-9._]+@[a-z]+",
    r"\{\"name\": \"[^\"]{0,5}\"\}",
    "(b7|a)-Z?",
    "é+|🦊*",
    ".{1,3}",
    ".*END",
    r"(?=.*\d)\w{2,4}",
    "true|false|null",
    "(b|ab)1?",
]


def brute_force(automaton, vocabulary):
    """The state after each allowed token of each live state, by the papers'
    algorithms."""
    text = Vocabulary(
        tuple(b"" if i in vocabulary.stop_token_ids else data for i, data in enumerate(vocabulary.token_bytes)), ()
    )
    steps = {state: {} for state in range(automaton.num_states)}
    for token, data in enumerate(text.token_bytes):
        if data:
            for walk in find_sub_sequences(automaton, data):
                steps[walk[0]][token] = walk[-1]
    assert {state: set(tokens) for state, tokens in steps.items()} == map_states_to_vocab(automaton, text)
    live = {state for state in steps if automaton.accepts(state)}
    while True:
        more = {state for state in steps if state not in live and live & set(steps[state].values())}
        if not more:
            break
        live |= more
    return {s: {t: end for t, end in ends.items() if end in live} for s, ends in steps.items()}, live


@pytest.mark.parametrize("name", VOCABULARIES)
def test_index_equals_a_walk_of_every_token_from_every_state(name, num_cases):
    vocabulary = VOCABULARIES[name]()
    rng = random.Random(name)
    patterns = PATTERNS + [random_pattern(rng, 2).text for _ in range(num_cases(25, long=300))]
    num_compared = 0
    for pattern in patterns:
        automaton = Automaton.from_regex(pattern)
        if not 0 < automaton.num_states <= 40:
            continue
        num_compared += 1
        index = TokenIndex(automaton, vocabulary)
        steps, live = brute_force(automaton, vocabulary)
        class_of_token, next_of_class = index.token_classes()
        assert live == {state for state in range(index.num_states) if index.is_live(state)}
        for state in live:
            assert allowed(index.mask(state)) == sorted(steps[state])
            assert index.accepts(state) == automaton.accepts(state)
            ends = [steps[state].get(token, -1) for token in range(vocabulary.size)]
            assert [index.next(state, token) for token in range(vocabulary.size)] == ends
            assert next_of_class[state][class_of_token].tolist() == ends
        assert len({tuple(column) for column in next_of_class.T}) == next_of_class.shape[1]  # no class twice
        masks = {index.mask(state).tobytes() for state in live}
        assert index.num_masks == len(masks)
        slots = {(index.mask_slot(state), index.mask(state).tobytes()) for state in live}
        assert sorted(slot for slot, _ in slots) == list(range(len(masks)))
    assert num_compared >= 30


def large_vocabulary():
    """131,072 tokens with the lengths of a real vocabulary, most of them made of parts
    of the patterns' texts."""
    rng = random.Random(2)
    pieces = [*"abcdefghijklmnopqrstuvwxyz0123456789", " ", "-", "@", ".", ",", '"', '": "', "END", "tr", "ue", "null"]
    pieces += ["é", "🦊", "\n", "\u2028", "ab", "cat", "nip", "name", "<", "\\"]
    texts = {bytes([byte]) for byte in range(256)} | {b"\xc3", b"\xa9a", b"\x9f\xa6\x8a"}
    while len(texts) < 131_071:
        texts.add("".join(rng.choices(pieces, k=min(rng.randint(1, 4) + int(rng.expovariate(1)), 20))).encode())
    return Vocabulary((*sorted(texts), b""), (131_071,))


def test_index_of_a_large_vocabulary_equals_a_walk_of_every_token_from_every_state(num_cases):
    """The walks of all tokens at once, one byte after the other."""
    vocabulary = large_vocabulary()
    rng = random.Random(3)
    lengths = np.array([len(data) for data in vocabulary.token_bytes])
    columns = np.zeros((lengths.max(), len(lengths)), dtype=np.intp)
    for token, data in enumerate(vocabulary.token_bytes):
        columns[: len(data), token] = [*data]
    patterns = PATTERNS + [random_pattern(rng, 2).text for _ in range(num_cases(30, long=200))]
    num_compared = 0
    for pattern in patterns:
        automaton = Automaton.from_regex(pattern)
        if not 0 < automaton.num_states <= 40:
            continue
        num_compared += 1
        index = TokenIndex(automaton, vocabulary)
        dead = automaton.num_states
        after_byte = np.full((dead + 1, 256), dead)
        for state in range(dead):
            for first, last, target in automaton.edges(state):
                after_byte[state, first : last + 1] = target
        for state in rng.sample(range(dead), min(dead, 6)):
            ends = np.full(len(lengths), state)
            for position, column in enumerate(columns):
                ends = np.where(position < lengths, after_byte[ends, column], ends)
            is_allowed = (ends != dead) & (lengths > 0)  # every byte is a token, so every state is live
            mask = np.unpackbits(index.mask(state).view(np.uint8), bitorder="little", count=len(lengths))
            assert (mask.astype(bool) == is_allowed).all(), pattern
            for token in rng.sample(range(len(lengths)), 50) + rng.choices([*np.flatnonzero(is_allowed), 0], k=50):
                assert index.next(state, int(token)) == (ends[token] if is_allowed[token] else -1)
    assert num_compared >= 30


@pytest.mark.parametrize("token", [-1, 525, 2**31, 2**64, -(2**70), None, 1.0, "a", True])
def test_next_of_what_is_no_token_is_minus_one(token):
    index = TokenIndex(Automaton.from_regex(".*"), VOCABULARIES["byte_level"]())
    assert index.next(0, token) == -1
    with pytest.raises(IndexError, match="a state must be in"):
        index.next(index.num_states, 1)


def test_forced_bytes_end_at_a_choice_and_where_the_text_may_end():
    index = TokenIndex(Automaton.from_choices(["abc", "abcdef", "abcdxy"]), VOCABULARIES["byte_level"]())
    assert index.forced(0) == b"abc"
    assert index.forced(index.automaton.next(index.automaton.next(0, ord("a")), ord("b"))) == b"c"


def test_token_classes_that_are_too_large_raise():
    index = TokenIndex(Automaton.from_regex("[ab]{2,5}"), VOCABULARIES["byte_level"]())
    with pytest.raises(GrammarLimitError, match="table_bytes is limited to 10"):
        index.token_classes(max_bytes=10)


# -- files -----------------------------------------------------------------------------


def test_saved_index_is_restored_and_equal_ones_make_equal_files(tmp_path):
    vocabulary = VOCABULARIES["odd"]()
    index = TokenIndex(Automaton.from_regex("[ab]{2,5}1?"), vocabulary)
    index.save(tmp_path / "a")
    index.compute_masks()
    index.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = TokenIndex.load(tmp_path / "a", vocabulary)
    assert loaded.automaton == index.automaton
    assert all((loaded.mask(state) == index.mask(state)).all() for state in range(index.num_states))


def test_saved_index_that_is_damaged_or_of_another_vocabulary_is_refused(tmp_path):
    path = tmp_path / "index"
    TokenIndex(Automaton.from_regex("[ab]{2,5}"), VOCABULARIES["odd"]()).save(path)
    with pytest.raises(ValueError, match="belongs to another vocabulary"):
        TokenIndex.load(path, VOCABULARIES["byte_level"]())
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(ValueError, match="a saved token index is damaged"):
        TokenIndex.load(path, VOCABULARIES["odd"]())


# -- the backend -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend():
    vocabulary = VOCABULARIES["byte_level"]()
    return NativeBackend(vocabulary, canonical_tokenizer=CanonicalTokenizer(byte_level(), vocabulary))


SHARED_PATTERNS = [  # with classes that both read alike: llguidance's \d, \w and \s are Unicode's
    r"[0-9]{3}-[0-9]{4}",
    r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-z]{2,4}",
    '\\{"name": "[^"\\\\]{0,20}", "age": [0-9]{1,3}\\}',
    "[^\n\r\u2028\u2029]*END",
    r"([0-9A-Za-z_]+[ \t]?){1,6}",
    "^(true|false|null)$",
    r"[^,]{5}",
    r"[^ ]+ [^0-9]{3}",
]


@pytest.mark.parametrize("pattern", SHARED_PATTERNS)
def test_masks_along_random_paths_equal_those_of_llguidance(backend, pattern, num_cases):
    peer = LlguidanceBackend(backend.vocabulary)
    rng = random.Random(pattern)
    for _ in range(num_cases(3, long=40)):
        grammars = [each.compile_grammar(Kind.REGEX, pattern) for each in (backend, peer)]
        for _ in range(25):
            own, other = map(mask_of, grammars)
            assert np.array_equal(own, other)
            if not own.any():
                break
            token = rng.choice(allowed(own))
            assert all(grammar.accept_tokens("r", [token]) for grammar in grammars)
            if grammars[0].is_terminated():
                assert grammars[1].is_terminated()
                break


def test_masks_of_sixteen_threads_are_equal(backend):
    vocabulary = backend.vocabulary
    index = TokenIndex(Automaton.from_regex(r"(\w+@[a-z]{2,20} ?){1,9}"), vocabulary)
    expected = TokenIndex(index.automaton, vocabulary)
    expected.compute_masks()

    def masks(seed):
        order = random.Random(seed).sample(range(index.num_states), index.num_states)
        return {state: index.mask(state).tobytes() for state in order}

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(masks, range(16)))
    assert all(each == found[0] for each in found)
    assert found[0] == {state: expected.mask(state).tobytes() for state in range(index.num_states)}
    assert index.num_masks == expected.num_masks


def test_state_id_follows_the_text_and_its_rollbacks(backend):
    grammar = backend.compile_grammar(Kind.REGEX, "ab*c")
    a, b, c = (backend.vocabulary.token_bytes.index(text) for text in (b"a", b"b", b"c"))
    start = grammar.state_id()
    assert grammar.accept_tokens("r", [a])
    after_a = grammar.state_id()
    assert grammar.accept_tokens("r", [b, b])
    assert start != after_a == grammar.state_id()
    assert grammar.accept_tokens("r", [c])
    assert grammar.index.accepts(grammar.state_id())
    grammar.rollback(4)
    assert grammar.state_id() == start == 0


def test_batched_call_with_what_is_no_matcher_raises(backend):
    core = extension.core()
    matcher = backend.compile_grammar(Kind.REGEX, "a+").matcher
    assert type(matcher) is type(matcher.copy()) is core.IndexMatcher
    rows = allocate_token_bitmask(2, 525)
    core.fill_batch([matcher, matcher.copy()], rows.data_ptr(), 4 * rows.stride(0), [0, 1])
    assert torch.equal(rows[0], rows[1])
    for given, message in ((core.Limits(), "expected a Matcher, got a .*Limits"), (None, "expected a Matcher")):
        with pytest.raises(TypeError, match=message):
            core.fill_batch([matcher, given], rows.data_ptr(), 4 * rows.stride(0), [0, 1])
    with pytest.raises(TypeError, match="not initialised"):
        core.Step({0: core.IndexMatcher.__new__(core.IndexMatcher)}, [0])
    with pytest.raises(TypeError, match="No constructor"):
        core.Matcher()


def test_text_that_the_vocabulary_cannot_end_is_refused():
    backend = NativeBackend(Vocabulary((b"a", b"c", b""), (2,)))
    with pytest.raises(GrammarError, match="allows no text at all") as caught:
        backend.compile_grammar(Kind.REGEX, "abc")
    assert caught.value.kind is GrammarErrorKind.IMPOSSIBLE
    grammar = backend.compile_grammar(Kind.REGEX, "a(bc|c)")
    assert grammar.accept_tokens("r", [0, 1, 2])


def test_pattern_without_a_text_is_impossible(backend):
    for pattern in ("[^\\s\\S]", "a^b", "(?=a)b"):
        with pytest.raises(GrammarError, match="allows no text at all"):
            backend.compile_grammar(Kind.REGEX, pattern)


def test_memory_bytes_grow_with_the_masks(backend):
    grammar = backend.compile_grammar(Kind.REGEX, r"(\w+@[a-z]{2,20} ?){1,9}")
    before = grammar.memory_bytes
    grammar.index.compute_masks()
    assert grammar.memory_bytes > before > grammar.index.automaton.memory_bytes


def test_engine_that_was_not_built_is_refused_by_message(monkeypatch):
    def missing(name):
        raise ImportError("no module")

    monkeypatch.setattr(extension.importlib, "import_module", missing)
    extension.core.cache_clear()
    try:
        with pytest.raises(ImportError, match="structout's own grammar engine cannot be loaded"):
            NativeBackend(Vocabulary((b"a", b""), (1,)))
    finally:
        extension.core.cache_clear()


def test_manager_serves_requests_with_the_engine():
    tokenizer = byte_level()
    with StructuredOutputManager(tokenizer, 525) as manager:
        text = tokenizer("2024-01-31", add_special_tokens=False)["input_ids"]
        for name, params in (("a", {"regex": r"\d{4}-\d\d-\d\d"}), ("b", {"choice": ["2024-01-31", "never"]})):
            manager.add_request(name, StructuredOutputsParams(**params, backend="native"))
            manager.wait_ready(name, 60)
            manager.fork(name, name + name)
            masks = manager.grammar_bitmask([name, name + name], draft_tokens={name: text})
            assert masks.num_acceptable_drafts[0] == len(text)
            assert manager.accept_tokens(name, text)
            assert manager.accept_tokens(name, [tokenizer.eos_token_id])
            assert manager.is_terminated(name)
            assert not manager.is_terminated(name + name)
        assert manager.find_jump_forward_string("bb") == ""
