"""The manager beside the grammar engines used directly: the same verdicts and masks, bit for bit, in whatever batches.

The schemas of tests/data always run; ``--maskbench PATH`` adds those of a file in MaskBench's format, one a line.
"""

import json
import random
from pathlib import Path

import pytest
import xgrammar
from locations import DATA
from tokenizers_on_the_spot import byte_level

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from structout.bitmask import allocate_token_bitmask
from structout.errors import GrammarError
from structout.grammar.router import BackendSet
from structout.grammar.vocabulary import Vocabulary

OWN = [json.loads(line) for line in (DATA / "schemas.jsonl").read_text().splitlines()]
V = 525
VOCABULARY = Vocabulary.from_tokenizer(byte_level(), V)
STOP = VOCABULARY.stop_token_ids[0]
LIVE = 24  # requests at a time


class Follower:
    """One text, told to the manager and, token by token, to a grammar of its own."""

    def __init__(self, name, direct, tokens):
        self.name, self.direct, self.tokens = name, direct, tokens
        self.num_taken = 0

    @property
    def is_done(self):
        return self.direct.is_terminated() or self.num_taken == len(self.tokens)

    def mask(self):
        mask = allocate_token_bitmask(1, V)
        self.direct.fill_bitmask(mask, 0)
        return mask[0].numpy()

    def advance(self, manager, rng):
        """One token more, or some taken back and told again; whether the text goes on."""
        back = rng.randrange(min(self.num_taken, 8) + 1) if rng.random() < 0.1 else 0
        self.direct.rollback(back)
        manager.rollback(self.name, back)
        self.num_taken -= back
        token = self.tokens[self.num_taken]
        verdict = self.direct.accept_tokens(self.name, [token])
        assert manager.accept_batch({self.name: [token]}) == {self.name: verdict}
        assert manager.is_terminated(self.name) is self.direct.is_terminated()
        self.num_taken += verdict
        return verdict and not self.is_done


def follow_all(cases, backend):
    """Texts of all cases, ``LIVE`` of them at a time, in a new order each step."""
    rng = random.Random(0)
    config = StructuredOutputsConfig(compile_workers=2, fill_threads=2, tenant_queue_size=512)
    engines = BackendSet(VOCABULARY, config)
    texts = [(case["schema"], test["data"]) for case in cases for test in case["tests"]]
    rng.shuffle(texts)
    num_masks = num_refused = 0
    with StructuredOutputManager(byte_level(), V, config) as manager:
        followers = {}
        while texts or followers:
            while texts and len(followers) < LIVE:
                schema, data = texts.pop()
                name = f"r{len(texts)}"
                params = StructuredOutputsParams(json=schema, backend=backend)
                manager.add_request(name, params)
                try:
                    direct = engines.compile(params.constraint(config)).grammar.copy()
                except GrammarError:
                    with pytest.raises(GrammarError):
                        manager.wait_ready(name, timeout=60)
                    manager.finish_request(name)
                    num_refused += 1
                    continue
                manager.wait_ready(name, timeout=60)
                tokens = [*VOCABULARY.spell(json.dumps(data, ensure_ascii=False)), STOP]
                followers[name] = Follower(name, direct, tokens)
            names = list(followers)
            rng.shuffle(names)
            batch = manager.grammar_bitmask(names)
            assert not batch.errors
            for row, name in enumerate(names):
                assert (batch.bitmask[row] == followers[name].mask()).all()
                num_masks += 1
            for name in names:
                if not followers[name].advance(manager, rng):
                    manager.finish_request(name)
                    del followers[name]
    return num_masks, num_refused


@pytest.mark.parametrize("backend", ["auto", "xgrammar:no-fallback", "llguidance:no-fallback"])
def test_own_schemas(backend):
    num_masks, num_refused = follow_all(OWN, backend)
    assert num_masks > 1_000
    assert num_refused < 200


def test_maskbench(request):
    path = request.config.getoption("--maskbench")
    if path is None:
        pytest.skip("no --maskbench PATH: MaskBench's schemas were not tried")
    num_masks, num_refused = follow_all([json.loads(line) for line in Path(path).read_text().splitlines()], "auto")
    assert num_masks > 50_000
    assert num_refused < 100


def test_xgrammars_own_matcher_says_the_same():
    """The engine without anything of ours around it, on a schema that needs no correction."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    info = xgrammar.TokenizerInfo(
        list(VOCABULARY.token_bytes), xgrammar.VocabType.RAW, vocab_size=V, stop_token_ids=[STOP]
    )
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_json_schema(schema))
    mask = xgrammar.allocate_token_bitmask(1, V)
    with StructuredOutputManager(byte_level(), V) as manager:
        manager.add_request("r", StructuredOutputsParams(json=schema, backend="xgrammar:no-fallback"))
        manager.wait_ready("r", timeout=60)
        for token in [*VOCABULARY.spell('{"a": [1, 23 ,456]}'), STOP]:
            matcher.fill_next_token_bitmask(mask, 0)
            assert (manager.grammar_bitmask(["r"]).bitmask == mask.numpy()).all()
            assert manager.accept_tokens("r", [token]) and matcher.accept_token(token)  # noqa: PT018 - both or neither
