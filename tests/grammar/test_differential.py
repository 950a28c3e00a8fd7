"""Instances token by token: engines accept what the schema allows, and masks allow what
engines accept.

The schemas of tests/data always run. ``--maskbench PATH`` adds those of a file in
MaskBench's format, one per line.
"""

import json
import random
from pathlib import Path

import jsonschema
import pytest
from locations import DATA
from tokenizers_on_the_spot import byte_level

from structout.bitmask import allocate_token_bitmask
from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError
from structout.grammar.engine_versions import LLGUIDANCE_ESCAPES_IN_NAMES, is_at_least
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from structout.params import StructuredOutputsParams

OWN = [json.loads(line) for line in (DATA / "schemas.jsonl").read_text().splitlines()]
VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)
STOP = VOCABULARY.stop_token_ids[0]
# xgrammar does not allow some instances of these schemas: properties that no keyword
# names, text around the match of a pattern, and whitespace inside values of an enum.
TOO_STRICT_FOR_XGRAMMAR = {"open object", "pattern properties", "pattern anywhere", "enum of all types"}

# Versions of llguidance before 1.9.1 write no negative multiples.
TOO_STRICT_FOR_OLDER_LLGUIDANCE = {"multiples", "multiples of a fraction"}


def is_too_strict(backend_name, case_name):
    """Whether the engine is known to refuse some valid instances of the schema."""
    if backend_name == "xgrammar":
        return case_name in TOO_STRICT_FOR_XGRAMMAR
    return case_name in TOO_STRICT_FOR_OLDER_LLGUIDANCE and not is_at_least("llguidance", "1.9.1")


@pytest.fixture(scope="module")
def backend_set():
    return BackendSet(VOCABULARY, StructuredOutputsConfig(compile_timeout=60), byte_level())


@pytest.fixture(scope="module")
def maskbench(request):
    path = request.config.getoption("--maskbench")
    if path is None:
        pytest.skip("no --maskbench PATH: MaskBench's schemas were not tried")
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def compile_or_none(backend_set, schema, backend):
    try:
        return backend_set.compile(StructuredOutputsParams(json=schema, backend=backend).constraint())
    except GrammarError:
        return None


def tokens_of(value):
    return [*VOCABULARY.spell(json.dumps(value, ensure_ascii=False)), STOP]


def accepted_prefix(grammar, tokens):
    """How many tokens are accepted one by one. The grammar is rolled back
    afterwards."""
    accepted = 0
    for token in tokens:
        if not grammar.accept_tokens("r", [token]):
            break
        accepted += 1
    grammar.rollback(accepted)
    return accepted


def allowed(grammar):
    bitmask = allocate_token_bitmask(1, VOCABULARY.size, pin_memory=False)
    grammar.fill_bitmask(bitmask, 0)
    words = bitmask[0].tolist()
    return {i for i in range(VOCABULARY.size) if words[i >> 5] >> (i & 31) & 1}


def check_masks(grammar, tokens, draw):
    """Check masks against accepted tokens along an instance, and again after rollbacks
    in random order."""
    masks = []
    for token in tokens:
        mask = allowed(grammar)
        others = draw.sample(range(VOCABULARY.size), 40)
        for other in {*others, *draw.sample(sorted(mask), min(8, len(mask)))}:
            assert (other in mask) == bool(grammar.validate_tokens([other]))
        masks.append(mask)
        assert token in mask
        assert grammar.accept_tokens("r", [token])
    positions = list(range(len(tokens)))
    draw.shuffle(positions)
    for position in positions[:5]:
        grammar.rollback(len(tokens) - position)
        assert allowed(grammar) == masks[position]
        assert grammar.accept_tokens("r", tokens[position:])
    grammar.reset()


@pytest.mark.parametrize("backend", ["auto", "xgrammar:no-fallback", "llguidance:no-fallback"])
@pytest.mark.parametrize("case", OWN, ids=lambda case: case["name"])
def test_grammar_accepts_the_valid_instances_of_own_schemas(backend_set, case, backend):
    compiled = compile_or_none(backend_set, case["schema"], backend)
    if compiled is None:
        return
    assert compiled.weakened == ()
    draw = random.Random(case["name"])
    judge = jsonschema.validators.validator_for(case["schema"])(case["schema"])
    for test in case["tests"]:
        tokens = tokens_of(test["data"])
        is_accepted = accepted_prefix(compiled.grammar, tokens) == len(tokens)
        if not test["valid"]:
            # Without a format checker the judge reads a format as an annotation too.
            violates_format_only = compiled.annotations and judge.is_valid(test["data"])
            assert not is_accepted or violates_format_only, test["data"]
        elif not is_too_strict(compiled.backend_name, case["name"]):
            assert is_accepted, test["data"]
        if is_accepted:
            check_masks(compiled.grammar, tokens[:80], draw)


def test_compile_with_auto_serves_also_what_only_fsm_enforces(backend_set):
    assert [case["name"] for case in OWN if compile_or_none(backend_set, case["schema"], "auto") is None] == []


def test_other_engines_refuse_what_they_do_not_enforce(backend_set):
    names = ("llguidance:no-fallback", "xgrammar:no-fallback")
    refused = {
        case["name"]
        for case in OWN
        if all(compile_or_none(backend_set, case["schema"], name) is None for name in names)
    }
    expected = {case["name"] for case in OWN if case["name"].startswith("nobody enforces")}
    if not is_at_least("llguidance", LLGUIDANCE_ESCAPES_IN_NAMES):
        expected |= {"all of", "conditions"}  # the names of other properties cannot be written as disjoint patterns
    assert refused == expected


@pytest.mark.parametrize(
    ("backend", "min_compiled"), [("auto", 0.94), ("xgrammar:no-fallback", 0.4), ("llguidance:no-fallback", 0.94)]
)
def test_maskbench_verdicts(backend_set, maskbench, backend, min_compiled):
    """No compiled schema accepts an invalid instance; only xgrammar refuses valid
    ones."""
    wrong, num_compiled = [], 0
    for case in maskbench:
        compiled = compile_or_none(backend_set, case["schema"], backend)
        if compiled is None:
            continue
        num_compiled += 1
        for test in case["tests"]:
            tokens = tokens_of(test["data"])
            is_accepted = accepted_prefix(compiled.grammar, tokens) == len(tokens)
            if is_accepted != test["valid"] and (is_accepted or compiled.backend_name != "xgrammar"):
                wrong.append((case["name"], compiled.backend_name, test))
    assert wrong == []
    assert num_compiled >= min_compiled * len(maskbench)


def test_maskbench_masks(backend_set, maskbench):
    draw = random.Random(0)
    for case in maskbench[::7]:
        compiled = compile_or_none(backend_set, case["schema"], "auto")
        valid = [test["data"] for test in case["tests"] if test["valid"]]
        if compiled is not None and valid:
            check_masks(compiled.grammar, tokens_of(valid[0])[:200], draw)


def test_maskbench_forced_tokens_are_canonical(backend_set, maskbench):
    """Along the tokenizer's own tokens of an instance, the forced tokens are the next
    ones."""
    tokenizer = byte_level()
    for case in maskbench[::5]:
        compiled = compile_or_none(backend_set, case["schema"], "auto")
        for test in case["tests"]:
            if compiled is None or not test["valid"]:
                continue
            tokens = tokenizer.encode(json.dumps(test["data"], ensure_ascii=False), add_special_tokens=False)[:150]
            for position, token in enumerate(tokens):
                forced = compiled.grammar.compute_ff_tokens()
                assert forced[: len(tokens) - position] == tokens[position : position + len(forced)], case["name"]
                assert compiled.grammar.accept_tokens("r", [token])
            compiled.grammar.reset()
