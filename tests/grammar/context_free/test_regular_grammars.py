"""Grammars as automata of structout's own engine: against xgrammar for GBNF, and
against llguidance for Lark."""

import itertools
import json
import random
import subprocess
import sys
import unicodedata

import pytest

from structout import StructuredOutputsConfig, StructuredOutputsParams
from structout.constraints.params import StructuredOutputOptions as Kind
from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError
from structout.grammar.native.automaton import AutomatonLimits
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.grammars import compile_grammar
from structout.grammar.optional.xgrammar import XgrammarBackend
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from support.automaton_texts import drawn_text
from support.llguidance_backend import LlguidanceBackend
from support.random_grammars import random_regular_grammar
from support.random_patterns import HOSTILE, PLAIN, mutated

BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(256,))


def judge(backend, grammar):
    """Whether another engine accepts a text as a whole."""
    compiled = backend.compile_grammar(Kind.GRAMMAR, grammar)

    def accepts(text):
        tokens = [*text.encode(), 256]
        return len(compiled.validate_tokens(tokens)) == len(tokens)

    return accepts


@pytest.fixture(scope="module")
def xgrammar():
    return XgrammarBackend(BYTES)


@pytest.fixture(scope="module")
def llguidance():
    return LlguidanceBackend(BYTES)


# -- GBNF ------------------------------------------------------------------------------

GBNF = [
    ('root ::= "a" | "b" "c"', ["a", "bc"], ["ac", "b", ""]),
    ('root ::= ("a" | "b")+ "c"?', ["abc", "a"], ["c", ""]),
    ('root ::= "a"{2} "b"{1,2} "c"{1,} "d"{0}', ["aabc", "aabbcc"], ["abc", "aab", "aabcd"]),
    ('root ::= "a" { 1 , 2 }', ["a", "aa"], ["", "aaa"]),
    ('root ::= "a" # a comment ::= "b"\n  | () # another', ["a", ""], ["b"]),
    ('root ::= item-1 (", " item-1)*\nitem-1 ::= [a-c]', ["a", "a, b"], ["a,b", "d"]),
    (r'root ::= "\"\\\n\t\x41\u0042\U00000043\x20ac\e\?"', ['"\\\n\tABC\u20ac\x1b?'], ["x"]),
    (r'root ::= "\x411"', ["\u0411"], ["A1"]),  # the number takes all the digits it can
    (r"root ::= [\]\-\\\^a] [^\n]", ["]é", "-x", "^x", "ax"], ["a\n", "b1"]),
    ("root ::= [+--] [--a] [a-]", ["+-a", "-a-", ",\\-"], ["a-a", "+,b"]),
    ("root ::= [^a-z]", ["é", "\n", "A"], ["a", "", "AA"]),
    ('root ::= "x" root | "y"', ["y", "xxy"], ["x", ""]),
    ('root ::= root "x" | root "z" | "y"', ["y", "yxzx"], ["x", ""]),
    ('root ::= a\na ::= "x" b | "y"\nb ::= "z" a | "w" a?', ["y", "xzy", "xw", "xwxzy"], ["x", "xz"]),
    ('root ::= ("a" | "b" root)?', ["", "a", "bba", "bb"], ["aa"]),
    ('root ::= root | "a"', ["a"], ["", "aa"]),
    ('a ::= b "x"\nb ::= "y" | ""\nroot ::= a a', ["yxx", "xyx"], ["yx"]),
    ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["", "(x", "x)"]),
    ('root ::= a\na ::= "x" b "y" | ""\nb ::= c\nc ::= a', ["", "xy", "xxyy"], ["x", "xxy"]),
    ('root ::= ("x" root)* "y"', ["y", "xyy", "xyxxyyy"], ["x", "xy"]),
    ('root ::= root root | "x"', ["x", "xxxx"], [""]),
    ('root ::= "a"\nunused ::= "(" unused ")" | "b"', ["a"], ["b"]),
]


@pytest.mark.parametrize(("grammar", "members", "others"), GBNF)
def test_gbnf_matches_exactly_its_language(grammar, members, others, xgrammar):
    language, accepts = compile_grammar(grammar, BYTES), judge(xgrammar, grammar)
    for text in members:
        assert language.matches(text), text
        assert accepts(text), text
    for text in others:
        assert not language.matches(text), text
        assert not accepts(text), text


def test_random_gbnf_has_the_language_of_xgrammar(xgrammar, num_cases):
    rng = random.Random(16)
    num_accepted = 0
    for _ in range(num_cases(150, long=3_000)):
        grammar = random_regular_grammar(rng)
        text = (grammar.with_recursion(rng) if rng.random() < 0.5 else grammar).gbnf()
        num_accepted += agree(grammar, text, judge(xgrammar, text), rng)
    assert num_accepted > 500


def agree(grammar, written, accepts, rng):
    """Compare a language with another engine. Return how many texts both accept."""
    try:
        language = compile_grammar(written, BYTES)
    except GrammarLimitError:  # one random grammar in a hundred is large
        return 0
    samples = [grammar.sample(rng) for _ in range(3)]
    assert all(map(language.matches, samples)), written
    if not isinstance(language, CompiledGrammar):
        samples += [text for text in (drawn_text(language, rng) for _ in range(2)) if text is not None]
    for text in [*samples, *(mutated(text, rng) for text in samples)]:
        assert language.matches(text) == accepts(text), (written, text)
    return len(samples)


# -- Lark ------------------------------------------------------------------------------

LARK = [
    ('start: "a" | "b" "c" -> name\n', "abc"),
    ('start: a? b+\na: "x"\n  | "y"\nb: ["z"] "x"', "xyz"),
    ('start: T\nT: "a"{1,2} "b"~2 "c"~0..1 "a"{,1} "b"{1,}', "abc"),
    ("start: T\nT: /[ab]c/ | U\nU: /c(ab)?/", "abc"),
    ("start: T\nT: /a.b/ | /b.a/s | /a(?s:.)a/", "ab\n\r"),
    (r"start: /a\/\s/ | /[\s-]b/", "a/b \n-"),
    ('start: "ks"i "1"i', "kKsS\u212a\u017f1"),
    ('start: "a".."c" "\\u0041\\n"?', "abcdA\n"),
    ('start: /a[b-k]/i "é"i', "aABkK\u212aéÉ"),
    (r"start: /[^a\n]\sé/i", "aAbé É\n"),
    (r"start: /[\Sb][\Dc]/", "a1\x85\ufeff "),
    ('start: x "b"\nx[lazy]: /[ab]*a/', "ab"),
    ('start: /a[ab]*?b/ "c"?', "abc"),
    ('start: x "b"?\nx[suffix="c"]: /[ab]*/', "abc"),
    ('start: x+ "b"?\nx[suffix=/c+/, capture="y"]: /[ab]*/', "abc"),
    ("start: T\nT: /[ab]*/ & ~/(?s:.*)bb(?s:.*)/ & /.{1,4}/", "ab"),
    ("start: T\nT: ~A+ & /[ab]{1,3}/ | A A\nA: /ab/", "ab"),
    ('start: T\nT: "a" /b+/ & /ab/ "b" | "c"', "abc"),
    ('start: T\nT: ~("a" | "b"~2)? & /[abc]{1,3}/', "abc"),
    ('?start: _x | y\n_x: "a" // a comment\n# another\n!y[capture]: "b"', "ab/#"),
    ('start: list\nlist: list "," item | item\nitem: "a" | "b"', "ab,"),
    ('start: list\nlist: list "," item | item\nitem: "a" | "b"\n%ignore " "', "ab, "),
    ('start: "a" start | "b"', "ab"),
    ('%llguidance {"no_forcing": true}\nstart: "a"', "ab"),
    # %ignore
    ('start: "a" "b"\n%ignore / +/', "ab "),
    ('start: ("a" | "b" "a")+\n%ignore " "\n%ignore "-"', "ab -"),
    ('start: A b\nA: "x" "y"\nb: "z"*\n%ignore " "', "xyz "),
    ('start: "a"?\n%ignore " "', "a "),
    ('start: A "b"\nA: "a"+\n%ignore " "', "ab "),
    ('start: "a" "b" | "a" "x" "x"\n%ignore "x"\n%ignore "-"', "abx-"),
    ('start: "a"+ start? | "(" start ")"\n%ignore " "', "a( )"),
    ('start: e\ne: e "+" e | "a" | "(" e ")"\n%ignore " "', "a+( )"),
    ('start: "" "a" "b"? ""\n%ignore " "', "ab "),
    ("%import common.INT\n%import common (WS_INLINE, LCASE_LETTER)\n%ignore WS_INLINE\nstart: LCASE_LETTER INT", "a1 "),
    ("%import common.DIGIT -> D\nstart: D D", "12a"),
]


@pytest.mark.parametrize(("grammar", "alphabet"), LARK)
def test_lark_has_the_language_of_llguidance(grammar, alphabet, llguidance):
    language, accepts = compile_grammar(grammar, BYTES), judge(llguidance, grammar)
    max_length = 5 if len(alphabet) < 5 else 4
    texts = ["".join(text) for length in range(max_length + 1) for text in itertools.product(alphabet, repeat=length)]
    assert [text for text in texts if language.matches(text)] == [text for text in texts if accepts(text)]
    assert any(map(language.matches, texts))


@pytest.mark.parametrize(
    "written", [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"[\dx]", r"[^\w-]", r"\p{Lu}", r"[\P{L}a]"]
)
def test_lark_class_has_the_characters_of_llguidance(written, llguidance, num_cases):
    grammar = f"start: /{written}/"
    language, accepts = compile_grammar(grammar, BYTES), judge(llguidance, grammar)
    rng = random.Random(written)
    assigned = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    small = [character for character in assigned if character < "\u3000"]
    chosen = rng.sample(assigned, num_cases(1_000, long=100_000)) + rng.sample(small, 1_000) + list(HOSTILE + PLAIN)
    assert [c for c in chosen if language.matches(c)] == [c for c in chosen if accepts(c)]


def test_random_lark_has_the_language_of_llguidance(llguidance, num_cases):
    rng = random.Random(16)
    num_accepted = 0
    for _ in range(num_cases(150, long=3_000)):
        grammar = random_regular_grammar(rng)
        text = grammar.as_terminals().lark()
        num_accepted += agree(grammar, text, judge(llguidance, text), rng)
    assert num_accepted > 500


TEXTS_OF_TERMINALS = {
    "DIGIT": "7",
    "HEXDIGIT": "F",
    "INT": "120",
    "SIGNED_INT": "-12",
    "DECIMAL": "1.5",
    "FLOAT": "1.5e-3",
    "SIGNED_FLOAT": "+.5E7",
    "NUMBER": "12.e4",
    "SIGNED_NUMBER": "-0.5",
    "ESCAPED_STRING": '"a\\"b\\\\é"',
    "LCASE_LETTER": "a",
    "UCASE_LETTER": "Z",
    "LETTER": "q",
    "WORD": "aZq",
    "CNAME": "_a1Z",
    "WS_INLINE": " \t ",
    "WS": " \t\r\n\f",
    "CR": "\r",
    "LF": "\n",
    "NEWLINE": "\r\n\n",
    "SH_COMMENT": "#a #é",
    "CPP_COMMENT": "//a /é",
    "C_COMMENT": "/* a * /b **/",
    "SQL_COMMENT": "--a -é",
}


@pytest.mark.parametrize("name", TEXTS_OF_TERMINALS)
def test_imported_terminal_has_the_language_of_llguidance(name, llguidance, num_cases):
    grammar = f"%import common.{name}\nstart: {name}"
    language, accepts = compile_grammar(grammar, BYTES), judge(llguidance, grammar)
    rng = random.Random(name)
    texts = [TEXTS_OF_TERMINALS[name]]
    for _ in range(num_cases(150, long=3_000)):
        text = rng.choice(texts)
        other = mutated(text, rng)
        assert language.matches(other) == accepts(other), other
        if len(other) < 20:
            texts.append(other)
    assert language.matches(texts[0])


def test_terminals_that_read_the_same_text_are_chosen_by_their_priorities():
    language = compile_grammar('start: A "1" | B "2"\nA.2: /[ab]+/\nB.-1: /[bc]+/', BYTES)
    assert [text for text in ("b1", "b2", "c2", "bc2", "ab1") if not language.matches(text)] == ["b2"]


def test_lark_without_a_text_is_impossible(llguidance):
    """The first terminal takes as much as it can, and leaves nothing to the second."""
    grammar = 'start: /a+/ "ab"'
    assert not compile_grammar(grammar, BYTES).matches("aaab")
    assert not judge(llguidance, grammar)("aaab")
    with pytest.raises(GrammarError, match="allows no text at all") as caught:
        NativeBackend(BYTES).compile_grammar(Kind.GRAMMAR, grammar)
    assert caught.value.kind is GrammarErrorKind.IMPOSSIBLE


# -- refusals --------------------------------------------------------------------------

REFUSED = [
    ('root ::= "a" (= "b")', "unsupported", "line 1, column 14: lookahead in a grammar is not"),
    ('root[max_tokens=2] ::= "a"', "unsupported", "max_tokens in GBNF is not"),
    ('root[max_chars=x] ::= "a"', "malformed", "expected options such as"),
    ('root ::= TokenTagDispatch((5, b))\nb ::= "c"', "unsupported", "the macro TokenTagDispatch is not"),
    ('root ::= TagDispatch(("a", b), stop=1)\nb ::= "c"', "unsupported", "the option stop of TagDispatch is not"),
    ('root ::= Token("a")', "malformed", "expected the id of a token"),
    ("root ::= Regex(a)", "malformed", "expected a text"),
    ('root ::= Substring("a"', "malformed", r"expected \)"),
    (r"root ::= [\d]", "unsupported", r"\\d in a class is not"),
    (r'root ::= "\ud83e"', "unsupported", r"the character U\+D83E is not"),
    ('root ::= "a', "malformed", "line 1, column 10: .*unexpected .*, or what it opens is not closed"),
    ("root ::=", "malformed", "the rule is empty"),
    ('root ::= ("a"', "malformed", r"a \( is not closed"),
    ('root ::= "a")', "malformed", r"unexpected \)"),
    ('root ::= "a"**', "malformed", r"unexpected \*"),
    ('root ::= "a"{2,1}', "malformed", "out of order"),
    ("root ::= [z-a]", "malformed", "out of order"),
    (r'root ::= "\q"', "malformed", r"unknown escape \\q"),
    ('root ::= "a" b ::= "c"', "malformed", "a rule must begin on a new line"),
    ('root ::= "a"\nroot ::= "b"', "malformed", "line 2, column 1: .*defined twice"),
    ('root ::= "a"\n  b', "malformed", "line 2, column 3: the grammar uses b, which it does not define"),
    ('a ::= "b"', "malformed", "a GBNF grammar must have a rule named root"),
    ('::= "a"', "malformed", "expected a rule"),
    ('start: "a" %json {"type": 5}', "malformed", r"line 1, column 12: #/type: "),
    ('start: "a" %json {"minimum": 2, "maximum": 1, "type": "number"}', "impossible", "line 1, column 12: .* no text"),
    ('start: "a" %json nothing', "malformed", "expected a JSON value after %json"),
    ('start: T\nT: %json {"type": "object"}', "malformed", "%json has no place in a terminal"),
    ('start: %regex {"substring_chars": ["ab"]}', "malformed", "substring_chars needs a string"),
    ('start: %regex {"substring": "ab"}', "malformed", "%regex needs an object with one of substring_chunks"),
    ("start: <|im_end|>", "malformed", r"the tokenizer has no special token <\|im_end\|>; it has none"),
    ("start: <[5-]>", "malformed", r"<\[5-\]> is no list of token ids"),
    ("start: <[250-300]>", "malformed", "not below 257"),
    ("root ::= <[7-5]>", "malformed", "out of order"),
    ('start: %lark {\n start: "a"\n', "malformed", "is not closed"),
    ('start: %lark {\n start: b\n}\nb: "b"', "malformed", "line 2, column 9: the grammar uses b"),
    ('start: %lark {\n start: "a"\n start: "b"\n}\n%ignore " "', "malformed", "line 3, column 2: .*defined twice"),
    ('start: "a" | %lark {\n start: "a" start\n}\n%ignore " "', "impossible", "line 1, column 14: .*allows no text"),
    ('start: %lark {\n start: <[5]>\n}\n%ignore " "', "unsupported", "tokens are not supported in a grammar"),
    ('start: %lark {\n start[max_tokens=2]: /a+/\n}\n%ignore " "', "unsupported", "max_tokens is not supported in a"),
    ('start: %lark {\n start[capture]: /a+/\n}\n%ignore " "', "unsupported", "captures are not supported in a"),
    ('start: x\nx[stop=""]: /a*/', "unsupported", "the attribute stop without a text is"),
    ("start: x\nx[suffix]: /a*/", "malformed", "expected = after suffix"),
    ("start: x\nx[suffix=]: /a*/", "malformed", "expected a string, a regular expression or a terminal after suffix="),
    (r"start: /\p{Lu}/i", "unsupported", "without regard to case"),
    (r"start: /\x41/i", "unsupported", "without regard to case"),
    ("start: @other", "unsupported", "the grammar @other is not"),
    ('start[max_chars=5]: "a"', "unsupported", "the attribute max_chars of a rule is not"),
    ('start[temperature]: "a"', "malformed", "expected = after temperature"),
    ('start{x}: "a"', "unsupported", "templates are not"),
    ('start: list{"a"}\nlist{x}: x', "unsupported", "templates are not"),
    ('%declare X\nstart: "a"', "unsupported", "%declare is not"),
    ('%llguidance {"skip": true}\nstart: "a"', "unsupported", "the option skip of llguidance is not"),
    ('%llguidance {"allow_initial_skip": 1}\nstart: "a"', "malformed", "must be true or false"),
    ('%import mylib.X\nstart: "a"', "unsupported", "the library mylib is not"),
    (r"start: /[a\W]/", "unsupported", r"\\W in a class is not"),
    (r"start: /\p{Greek}/", "unsupported", "must be written"),
    ("start: /(?m)a/", "unsupported", "the flag m"),
    ("start: /[a&&b]/", "unsupported", "&& in a class is not"),
    ("start: /[[:alpha:]]/", "unsupported", r"\[ in a class is not"),
    (r"start: /\bx/", "unsupported", "word boundaries"),
    ("start: /^a/", "unsupported", "anchors are not supported in a grammar"),
    ("start: /a(?=b)/", "unsupported", "lookahead is not supported in a grammar"),
    ("start: /(/", "malformed", r"a \( is not closed"),
    ('start: "a" & "b"', "malformed", "& is for terminals only"),
    ('start: T\nT: x\nx: "a"', "malformed", "the terminal uses the rule x"),
    ('start: ("a"', "malformed", r"expected \)"),
    ('start: "a" }', "malformed", "unexpected }"),
    ('start: "b".."a"', "malformed", "two characters in their order"),
    ('start: "a"\nstart: "b"', "malformed", "line 2, column 1: .*start is defined twice"),
    ("start: x", "malformed", "line 1, column 8: the grammar uses x"),
    ('a: "x"', "malformed", "a Lark grammar must have a rule named start"),
    ("%import common.XYZ\nstart: XYZ", "malformed", "common has no XYZ, only DIGIT"),
    ('start: "\\ud83e"', "malformed", "a surrogate alone"),
    ("%llguidance {\nstart: X", "malformed", "expected a JSON value"),
]


@pytest.mark.parametrize(("grammar", "kind", "message"), REFUSED)
def test_unreadable_grammar_raises_with_the_cause_and_the_place(grammar, kind, message):
    with pytest.raises(GrammarError, match=message) as caught:
        compile_grammar(grammar, BYTES)
    assert caught.value.kind is GrammarErrorKind(kind)


def test_random_tokens_raise_nothing_but_grammar_errors(num_cases):
    parts = (
        'root start ::= : "a" "b"i [a-z] /x+/ /(/ ( ) [ ] { } {2} {1,} * + ? | & ~ .. -> _T A b % %ignore \\ , = ! . #'
    )
    tokens = [*parts.split(), "\n", " ", '"', "\n root ::=", "\nstart:", "\nA:", "é", "\x00"]
    rng = random.Random(3)
    num_compiled = 0
    for _ in range(num_cases(2_000, long=50_000)):
        text = rng.choice(["root ::= ", "start: ", "", "start: A\nA: "])
        text += "".join(rng.choice(tokens) + rng.choice(["", " "]) for _ in range(rng.randint(0, 8)))
        try:
            compile_grammar(text, BYTES)
            num_compiled += 1
        except GrammarError:
            pass
    assert num_compiled > 50


# -- limits ----------------------------------------------------------------------------

HOSTILE_GRAMMARS = {
    "doubled rules": "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)) + '\nr40 ::= "a"',
    "doubled empty rules": "root ::= r0\n"
    + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40))
    + "\nr40 ::= ()",
    "chain of rules": "root ::= r0\n" + "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(9_000)) + "\nr9000 ::= ()",
    "nested groups": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000,
    "unclosed groups": "root ::= " + "(" * 100_000,
    "unclosed classes": "root ::= " + "[" * 100_000,
    "unclosed texts": 'root ::= "' + "\\" * 100_001,
    "repetitions": "root ::= " + "(" * 100 + '"a"' + "){1,1000}" * 100,
    "large bound": 'root ::= "a"{' + "9" * 10_000 + "}",
    "exponential subsets": 'root ::= [ab]* "a" [ab]{25}',
    "one cycle": "\n".join(f'r{i} ::= r{(i + 1) % 9_000} "x"' for i in range(9_000)) + "\nroot ::= r0",
    "many cycles": "root ::= r0\n"
    + "\n".join(f'r{i} ::= "a" r{i} | r{i + 1}' for i in range(3_000))
    + "\nr3000 ::= ()",
    "complements": "start: T\nT: " + "~" * 5_000 + "/a.*b.*c/",
    "intersections": "start: T\nT: " + " & ".join(f"/(?s:.*)a.{{{i}}}b(?s:.*)/" for i in range(40)),
    "statements": "%llguidance {}\n" * 15_000 + 'start: "a"',
    "lines": "start: " + '\n| "a"' * 20_000,
    "many rules": "\n".join(f'root{i} ::= "a{i}"' for i in range(8_000)) + '\nroot ::= "x"',
}


def test_hostile_grammar_ends_in_time_and_memory():
    """In a process of its own, which shows its peak of memory."""
    script = """
import json, resource, sys, time
from structout.errors import GrammarError
from structout.grammar.native.grammars import compile_grammar
from structout.grammar.vocabulary import Vocabulary
vocabulary = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(256,))
compile_grammar('root ::= "a"', vocabulary)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seconds = {}
for name, grammar in json.load(sys.stdin).items():
    start = time.thread_time()
    try:
        compile_grammar(grammar, vocabulary)
    except GrammarError:
        pass
    seconds[name] = time.thread_time() - start
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))
"""
    run = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(HOSTILE_GRAMMARS),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    seconds, kilobytes = json.loads(run.stdout)
    assert {name: time for name, time in seconds.items() if time > 1.5} == {}
    assert kilobytes < 256 << 10


def test_limits_are_those_that_were_given():
    with pytest.raises(GrammarLimitError, match="pattern_states is limited to 10, got 11"):
        compile_grammar('root ::= "a"{20}', BYTES, AutomatonLimits(states=10))
    with pytest.raises(GrammarLimitError, match="nesting is limited to 3, got 4"):
        compile_grammar('root ::= (((("a"))))', BYTES, AutomatonLimits(nesting=3))


# -- the backend -----------------------------------------------------------------------


def test_backend_compiles_grammars(xgrammar):
    grammar = NativeBackend(BYTES).compile_grammar(Kind.GRAMMAR, 'root ::= "ab" | "ac" root')
    assert grammar.accept_tokens("r", [*b"acab"])
    assert not grammar.is_terminated()
    assert grammar.accept_tokens("r", [256])
    assert grammar.is_terminated()


def test_grammar_that_is_refused_is_refused_by_message_and_a_named_engine_may_serve_it():
    backends = BackendSet(BYTES, StructuredOutputsConfig())
    limited = 'root ::= a "!"\na[max_tokens=2] ::= "c"+'
    with pytest.raises(GrammarError, match=r"max_tokens in GBNF is not supported"):
        backends.compile(StructuredOutputsParams(grammar=limited).constraint())
    by_another = StructuredOutputsParams(grammar=limited, backend="xgrammar").constraint()
    assert backends.compile(by_another).backend_name == "xgrammar"
