"""CompilePool's cache: grammars and failures that are not compiled again, within the
configured bounds."""

import weakref

import pytest

from structout.errors import GrammarError
from support.compilations import Clock, Compiled, Key, cached, compile_with, wait_until_freed

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def test_submit_after_compilation_returns_the_same_result_at_once(make):
    pool = make(Compiled)
    assert cached(pool, "a") is None
    compiled = compile_with(pool, "a")
    assert compiled.text == "a"
    future = pool.submit("a")
    assert future.done()
    assert future.result() is compiled
    stats = pool.stats()
    assert (stats.cache_entries, stats.cache_hits, stats.cache_misses) == (1, 1, 1)
    assert stats.compile_seconds_max >= stats.compile_seconds_p99 >= stats.compile_seconds_p50 > 0


def test_submit_of_cached_key_does_not_compile_again(make, gates):
    pool = make(gates)
    gates.open("a")
    first = compile_with(pool, "a")
    assert compile_with(pool, "a") is first
    assert gates.count == {"a": 1}


def test_cache_bytes_over_thousands_of_keys_stay_within_the_bound(make, num_cases):
    bound, num_keys = 1 << 20, num_cases(3_000, long=10_000)
    pool = make(lambda i: Compiled(str(i), memory_bytes=i * 37 % 5000), cache_bytes=bound)
    for i in range(num_keys):
        compile_with(pool, i)
        assert pool.stats().cache_bytes <= bound
    kept = [compiled for i in range(num_keys) if (compiled := cached(pool, i)) is not None]
    assert pool.stats().cache_bytes == sum(value.memory_bytes for value in kept) + 512 * len(kept)
    assert [value.text for value in kept] == [str(i) for i in range(num_keys - len(kept), num_keys)]
    assert len(kept) > 250


def test_cache_of_long_keys_counts_entries_and_drops_the_keys(make):
    pool = make(lambda key: Compiled("", memory_bytes=0), cache_bytes=100 * 512)
    references = []
    for i in range(300):
        key = Key(f"{i}{'x' * 100_000}")
        compile_with(pool, key)
        references.append(weakref.ref(key))
        del key
    assert pool.stats().cache_entries == 100
    wait_until_freed(references)


def test_cache_evicts_the_least_recently_used_and_skips_too_large_grammars(make):
    pool = make(lambda key: Compiled(key, memory_bytes=10_000 if key == "large" else 488), cache_bytes=2500)
    for key in ("a", "b", "c", "large"):
        compile_with(pool, key)
        cached(pool, "a")
    assert [cached(pool, key) is not None for key in ("a", "b", "c", "large")] == [True, False, True, False]


def test_cached_grammars_that_grow_are_measured_again_and_stay_within_the_bound(make):
    pool = make(Compiled, cache_bytes=100 * 1512)
    grown = [compile_with(pool, str(i)) for i in range(50)]
    for compiled in grown:
        compiled.memory_bytes = 10_000
    compile_with(pool, "new")
    assert pool.stats().cache_bytes <= 100 * 1512
    kept = [compiled for compiled in grown if cached(pool, compiled.text) is not None]
    assert kept == grown[-14:]
    assert pool.stats().cache_bytes == 14 * 10_512 + 1512


def test_cached_failure_expires_after_its_ttl(make, gates):
    clock = Clock()
    pool = make(gates, clock=clock, failure_ttl=60.0)
    gates.errors["bad"] = GrammarError("bad")
    gates.open("bad")
    assert str(compile_with(pool, "bad")) == "bad"
    clock.now += 59
    assert str(cached(pool, "bad")) == "bad"
    assert pool.stats().failures_kept == 1
    clock.now += 1
    assert cached(pool, "bad") is None
    assert (pool.stats().failures_kept, pool.stats().cache_bytes) == (0, 0)
    compile_with(pool, "bad")
    assert gates.count == {"bad": 2}


def test_cached_failures_are_bounded_and_evict_few_grammars(make):
    def compile(key):
        if isinstance(key, str):
            return Compiled(key, memory_bytes=1000)
        raise GrammarError("x" * key)

    pool = make(compile, cache_bytes=64 * 1512, failures_kept=5)
    for i in range(64):
        compile_with(pool, f"good {i}")
    for i in range(20):
        compile_with(pool, i)
    assert [i for i in range(20) if cached(pool, i) is not None] == [15, 16, 17, 18, 19]
    for length in range(1000, 1100):
        compile_with(pool, length)
    stats = pool.stats()
    assert stats.failures_kept >= 1
    assert stats.cache_entries >= 64 * 15 // 16 - 1
    assert stats.cache_bytes <= 64 * 1512
    compile_with(pool, 1_000_000)
    assert cached(pool, 1_000_000) is None


def test_cache_of_size_zero_keeps_nothing(make):
    def compile(key):
        if key == "bad":
            raise GrammarError("bad")
        return Compiled(key)

    pool = make(compile, cache_bytes=0, failures_kept=0)
    for key in ("good", "bad"):
        compile_with(pool, key)
        assert cached(pool, key) is None
