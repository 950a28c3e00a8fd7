"""Compiled constraints in files: what is found again, and what is not."""

import contextlib
import logging
import os
import random
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from structout.errors import GrammarError
from structout.grammar import registry
from structout.grammar.compiled_files import CompiledFiles
from structout.grammar.native import automaton
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.extension import core
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from support.tokenizers_on_the_spot import byte_level

KEY, OTHER_KEY = b"\x01" * 32, b"\x02" * 32
FRAME = len(b"structout compiled constraint 1\n") + 32  # bytes of a file beside the data
VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)


def test_load_returns_what_was_saved(tmp_path):
    CompiledFiles(tmp_path / "a" / "b", 1 << 20).save(KEY, b"data")
    files = CompiledFiles(tmp_path / "a" / "b", 1 << 20)
    assert files.load(KEY) == b"data"
    assert files.load(OTHER_KEY) is None
    files.save(KEY, b"")
    assert files.load(KEY) == b""


def test_load_of_a_damaged_file_returns_none(tmp_path):
    files = CompiledFiles(tmp_path, 1 << 20)
    files.save(KEY, bytes(100))
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    rng = random.Random(0)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        for bad in (damaged, content[: rng.randrange(len(content))], content + b"\0"):
            path.write_bytes(bad)
            assert files.load(KEY) is None
    files.save(KEY, b"new")
    assert files.load(KEY) == b"new"


def test_file_with_any_byte_missing_or_changed_counts_as_missing(tmp_path):
    """Each place of a whole file once; what the engine reads below the checksum of the
    file has one of its own."""
    data = Automaton.from_regex("a(b|c)*").serialize()
    files = CompiledFiles(tmp_path, 1 << 20)
    files.save(KEY, data)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for i in range(len(content)):
        for bad in (
            content[:i],
            content[:i] + content[i + 1 :],
            content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :],
        ):
            path.write_bytes(bad)
            assert files.load(KEY) is None
    for i in range(len(data)):
        for bad in (data[:i], data[:i] + data[i + 1 :], data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]):
            with pytest.raises(ValueError, match="a serialized automaton"):
                Automaton.deserialize(bad)
    path.write_bytes(content)
    assert files.load(KEY) == data


def test_save_beyond_the_bound_removes_the_files_not_used_for_longest(tmp_path):
    files = CompiledFiles(tmp_path, 10 * (FRAME + 100))
    keys = [bytes([i]) * 32 for i in range(11)]
    for i, key in enumerate(keys[:10]):
        files.save(key, bytes(100))
        os.utime(tmp_path / f"{key.hex()}.compiled", (i, i))
    assert files.load(keys[0]) is not None  # used now
    files.save(keys[10], bytes(100))
    found = [key for key in keys if files.load(key) is not None]
    assert found == [keys[0], *keys[5:]]
    files.save(OTHER_KEY, bytes(10 * (FRAME + 100)))
    assert files.load(OTHER_KEY) is None


def test_directory_that_cannot_be_written_is_reported_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    files = CompiledFiles(tmp_path / "file" / "below", 1 << 20)
    with caplog.at_level(logging.WARNING, logger="structout.grammar"):
        files.save(KEY, b"data")
        assert files.load(KEY) is None
        files.save(KEY, b"data")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"compiled constraints are not kept in {tmp_path / 'file' / 'below'}"
    ]


@contextlib.contextmanager
def largest_file(num_bytes):
    """Let writes beyond ``num_bytes`` of a file fail, as those to a full disk do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_leaves_no_part_of_a_file_and_what_was_there(tmp_path, caplog):
    files = CompiledFiles(tmp_path, 1 << 20)
    files.save(KEY, b"data")
    for num_bytes in range(FRAME + 100):
        with largest_file(num_bytes):
            files.save(KEY, bytes(100))
            files.save(OTHER_KEY, bytes(100))
        assert [path.name for path in tmp_path.iterdir()] == [f"{KEY.hex()}.compiled"]
    assert files.load(KEY) == b"data"
    assert files.load(OTHER_KEY) is None
    assert len(caplog.records) == 1
    files.save(OTHER_KEY, bytes(100))  # there is room again
    assert files.load(OTHER_KEY) == bytes(100)


def test_constraints_compile_while_the_disk_is_full(tmp_path):
    constraint = StructuredOutputsParams(regex="ab*").constraint()
    backends = BackendSet(VOCABULARY, StructuredOutputsConfig(cache_dir=str(tmp_path)))
    with largest_file(FRAME):
        assert backends.compile(constraint).backend_name == "native"
    assert list(tmp_path.iterdir()) == []
    backends.compile(constraint)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("jump", [-(10**9), 10**9])
def test_bound_holds_although_the_wall_clock_jumps(tmp_path, jump):
    """Files then have times that are in the future, or long ago."""
    files = CompiledFiles(tmp_path, 10 * (FRAME + 100))
    keys = [bytes([i]) * 32 for i in range(30)]
    for i, key in enumerate(keys):
        files.save(key, bytes(100))
        used = time.time() + (jump if i % 2 else 0)
        for path in tmp_path.glob(f"{key.hex()}*"):  # it may have been the oldest
            os.utime(path, (used, used))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10 * (FRAME + 100)
    assert {files.load(key) for key in keys} == {None, bytes(100)}


def test_files_of_many_threads_are_whole(tmp_path):
    files = CompiledFiles(tmp_path, 20 * (FRAME + 1000))

    def use(seed):
        rng = random.Random(seed)
        for _ in range(200):
            i = rng.randrange(40)
            if rng.random() < 0.5:
                files.save(bytes([i]) * 32, bytes([i]) * 1000)
            else:
                assert files.load(bytes([i]) * 32) in (None, bytes([i]) * 1000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".new"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20 * (FRAME + 1000)


# -- in the manager --------------------------------------------------------------------


def remove_from_core(monkeypatch, *names):
    """Leave the native functions of automata without some."""
    functions = {name: getattr(core(), name) for name in dir(core()) if name not in names}
    monkeypatch.setattr(automaton, "core", lambda: SimpleNamespace(**functions))


CONSTRAINTS = {
    "regex": {"regex": r"\d{4}-\d\d(-\d\d)?"},
    "choice": {"choice": ["2024-01", "never", "2024-01-31"]},
}


def test_second_manager_loads_what_the_first_one_compiled(tmp_path, monkeypatch):
    config = StructuredOutputsConfig(cache_dir=str(tmp_path))
    masks = []
    for is_second in (False, True):
        if is_second:
            remove_from_core(monkeypatch, "compile_regex", "compile_choices")
        with StructuredOutputManager(byte_level(), 525, config) as manager:
            assert manager.warm_up([StructuredOutputsParams(**params) for params in CONSTRAINTS.values()]) == [
                None,
                None,
            ]
            for name, params in CONSTRAINTS.items():
                manager.add_request(name, StructuredOutputsParams(**params))
                assert manager.backend_name(name) == "native"
                assert manager.accept_tokens(name, VOCABULARY.spell("2024-01"))
            masks.append(manager.grammar_bitmask([*CONSTRAINTS]).bitmask.copy())
            if is_second:  # so the others were not compiled either
                manager.add_request("unknown", StructuredOutputsParams(regex="[a-z]{3}", backend="native"))
                with pytest.raises(GrammarError, match="compilation failed"):
                    manager.wait_ready("unknown", 60)
    assert (masks[0] == masks[1]).all()


@pytest.mark.parametrize("change", ["vocabulary", "version", "stop tokens"])
def test_files_of_another_model_or_version_are_not_used(tmp_path, monkeypatch, change):
    config = StructuredOutputsConfig(cache_dir=str(tmp_path))
    constraint = StructuredOutputsParams(regex="ab*").constraint()
    BackendSet(VOCABULARY, config).compile(constraint)
    vocabulary = VOCABULARY
    if change == "vocabulary":
        vocabulary = Vocabulary((*VOCABULARY.token_bytes, b"new"), VOCABULARY.stop_token_ids)
    elif change == "stop tokens":
        vocabulary = Vocabulary(VOCABULARY.token_bytes, (7,))
    else:
        monkeypatch.setattr(registry, "__version__", "another")
    BackendSet(vocabulary, config).compile(constraint)
    assert len(list(tmp_path.iterdir())) == 2


def test_file_that_the_engine_refuses_is_compiled_again(tmp_path):
    config = StructuredOutputsConfig(cache_dir=str(tmp_path))
    constraint = StructuredOutputsParams(regex="ab*").constraint()
    first = BackendSet(VOCABULARY, config)
    first.compile(constraint)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    first._files.save(bytes.fromhex(path.stem), b"of another engine")
    assert path.read_bytes() != content
    assert BackendSet(VOCABULARY, config).compile(constraint).backend_name == "native"
    assert path.read_bytes() == content


def test_no_file_is_written_without_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    BackendSet(VOCABULARY, StructuredOutputsConfig()).compile(StructuredOutputsParams(regex="ab*").constraint())
    assert list(tmp_path.iterdir()) == []
