"""CompileService's tenants: their turns, their shares of the workers, their queues."""

from collections import Counter

import pytest

from structout.errors import GrammarLimitError
from support.compile_jobs import Clock, Inbox, cached, compile_with

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def test_waiting_tenants_take_turns(make, gates):
    service = make(gates, compile_workers=4)
    for i in range(8):
        service.submit(f"a{i}", "a", Inbox())
    assert {gates.next_started() for _ in range(4)} == {"a0", "a1", "a2", "a3"}  # nobody else is there
    for tenant in "bcd":
        for i in range(2):
            service.submit(f"{tenant}{i}", tenant, Inbox())
    for i in range(4):
        gates.open(f"a{i}")
    assert Counter(gates.next_started()[0] for _ in range(4)) == {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize("other", ["b", ""], ids=["named", "the-default"])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_flood_of_one_tenant_leaves_a_share_free(make, gates, workers, other):
    service = make(gates, compile_workers=workers)
    gates.open("b seen")
    compile_with(service, "b seen", other)
    assert gates.next_started() == "b seen"
    for i in range(32):
        service.submit(f"a{i}", "a", Inbox())
    share = max(1, workers // 4)
    for _ in range(workers - share):
        assert gates.next_started().startswith("a")
    assert service.stats().compiling == workers - share
    for i in range(share):
        service.submit(f"b{i}", other, Inbox())
        assert gates.next_started() == f"b{i}"


def test_tenant_alone_for_a_minute_uses_all_workers(make, gates):
    clock = Clock()
    service = make(gates, clock=clock, compile_workers=4, compile_timeout=1000.0)
    gates.open("b seen")
    compile_with(service, "b seen", "b")
    gates.next_started()
    service.submit("a0", "a", Inbox())
    clock.now += 61
    for i in range(1, 4):
        service.submit(f"a{i}", "a", Inbox())
    assert {gates.next_started() for _ in range(4)} == {"a0", "a1", "a2", "a3"}


def test_flood_of_one_tenant_never_delays_another(make, gates):
    """While all of a's compilations block, b's start at once, one after the other."""
    service = make(gates, compile_workers=4, tenant_queue_size=10_000, queue_size=10_000)
    gates.open("b seen")
    compile_with(service, "b seen", "b")
    assert gates.next_started() == "b seen"
    for i in range(1000):
        service.submit(f"a{i}", "a", Inbox())
    assert {gates.next_started() for _ in range(3)} == {"a0", "a1", "a2"}  # by three threads, in any order
    for i in range(15):
        inbox = Inbox()
        service.submit(f"b{i}", "b", inbox)
        assert gates.next_started() == f"b{i}"
        gates.open(f"b{i}")
        assert inbox.get().text == f"b{i}"
    assert service.stats().waiting == 997


def test_job_of_two_tenants_starts_at_the_first_turn_of_either(make, gates):
    service = make(gates)
    service.submit("first", "a", Inbox())
    assert gates.next_started() == "first"
    for i in range(5):
        service.submit(f"a{i}", "a", Inbox())
    service.submit("a4", "b", Inbox())
    gates.open("first", "a0", "a1", "a2", "a3", "a4")
    assert [gates.next_started() for _ in range(5)] == ["a0", "a4", "a1", "a2", "a3"]
    assert service.stats().waiting == 0


def test_submit_beyond_the_queue_limits_raises(make, gates):
    service = make(gates, queue_size=4, tenant_queue_size=3)
    service.submit("compiling", "a", Inbox())
    tickets = [service.submit(f"a{i}", "a", Inbox()) for i in range(3)]
    with pytest.raises(GrammarLimitError) as caught:
        service.submit("a3", "a", Inbox())
    assert (caught.value.limit, caught.value.got, caught.value.max) == ("tenant_queue_size", 4, 3)
    service.submit("a0", "a", Inbox())  # waits already
    service.submit("compiling", "a", Inbox())
    service.submit("b0", "b", Inbox())
    with pytest.raises(GrammarLimitError) as caught:
        service.submit("c0", "c", Inbox())
    assert (caught.value.limit, caught.value.got, caught.value.max) == ("queue_size", 5, 4)
    assert service.stats().waiting == 4
    service.cancel(tickets[1])
    service.submit("c0", "c", Inbox())
    assert cached(service, "a3") is None
