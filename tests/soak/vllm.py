"""The life of vLLM's HTTP server with the plugin, which needs vLLM.

A seed is a wave of requests of many kinds, of which some stream. One client in seven
leaves before its answer is complete, and one request in twenty is refused. Texts that
have ended by themselves must be what was asked for, and after the wave the server has
no request left. The growth of its memory is noted: what of it is vLLM's own is not
known.

At the end the engine's process is killed while requests run: each must end with an
error, and so must the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

import structout.integrations.vllm  # noqa: F401 - without it the server would be vLLM's own
from soak.hunt import Hunter, Tally
from soak.server import slope_with_interval
from support.vllm_clients import CLIENTS, REFUSED, ask, chat, num_requests, serving
from support.vllm_models import save_small_model

_WAVE = 200  # requests
_CLIENTS = 64
_LATEST_SECONDS = 60.0  # for what must come to an end
_POINTS_FOR_A_SLOPE = 24
_KILLED_AMONG = 16  # requests
_ENDLESS = {
    "structured_outputs": {"regex": "[a-z ]{4000,}"},
    "max_tokens": 450,
    "vllm_xargs": {"structout_fit": "off"},  # a limit below the shortest text is refused otherwise
}


async def _wave(url: str, rng: random.Random, tally: Tally) -> None:
    """Send requests, some at a time, and judge what comes back."""
    left = iter([random.Random(rng.random()) for _ in range(_WAVE)])

    async def client() -> None:
        for own in left:
            await _request(http, url, own, tally)

    limits = httpx.Limits(max_connections=_CLIENTS)
    async with httpx.AsyncClient(timeout=_LATEST_SECONDS * 2, limits=limits) as http:
        await asyncio.gather(*(client() for _ in range(_CLIENTS)))
    deadline = time.monotonic() + _LATEST_SECONDS
    while running := num_requests(url):
        if time.monotonic() > deadline:
            tally.findings.append(f"{running:.0f} requests are left in the server")
            return
        await asyncio.sleep(0.05)


async def _request(http: httpx.AsyncClient, url: str, rng: random.Random, tally: Tally) -> None:
    tally.executions["requests"] += 1
    if rng.random() < 0.05:
        body = rng.choice(REFUSED)
        response = await http.post(f"{url}/v1/chat/completions", json=chat(body))
        tally.executions["requests that were refused"] += 1
        if response.status_code != 400:
            tally.findings.append(f"{body} is answered with {response.status_code}: {response.text[:300]}")
        return
    body, is_right = rng.choice(CLIENTS)
    is_stream = rng.random() < 0.4
    if rng.random() < 1 / 7:
        try:
            await asyncio.wait_for(ask(http, url, body, is_stream), rng.random() * 0.3)
        except TimeoutError:
            tally.executions["requests whose client left"] += 1
        return
    texts = await ask(http, url, body, is_stream)
    if len(texts) != body.get("n", 1):
        tally.findings.append(f"{body} is answered with {texts}")
    for text, reason in texts:
        tally.executions["texts"] += 1
        tally.executions["texts that ended by themselves"] += reason == "stop"
        if reason not in ("stop", "length") or (reason == "stop" and not _holds(is_right, text)):
            tally.findings.append(f"{body}, stream {is_stream}, is answered with {text!r}, which ended by {reason}")


def _holds(is_right: Callable[[str], object], text: str) -> bool:
    try:
        return bool(is_right(text))
    except ValueError:  # no JSON
        return False


class Vllm(Hunter):
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._exit = contextlib.ExitStack()
        model = save_small_model(Path(self._folder.name))
        # The states of grammars are where GPUs have them by default.
        server = serving(model, Path(self._folder.name) / "log", keeps_states=True)
        self._url, pid = self._exit.enter_context(server)
        self._server = psutil.Process(pid)
        self._num_requests = 0
        self._memory: list[tuple[int, int]] = []

    def hunt(self, seed: int, tally: Tally) -> None:
        asyncio.run(_wave(self._url, random.Random(f"soak vllm {seed}"), tally))
        self._num_requests += tally.executions["requests"]
        num_bytes = sum(process.memory_info().rss for process in self._processes())
        self._memory.append((self._num_requests, num_bytes))

    def _processes(self) -> list[psutil.Process]:
        return [self._server, *self._server.children(recursive=True)]

    def finish(self, tally: Tally) -> None:
        if len(self._memory) >= _POINTS_FOR_A_SLOPE:
            slope, half_width = slope_with_interval(self._memory[len(self._memory) // 2 :])
            tally.measures["resident memory of all processes, bytes per request"] = round(slope, 1)
            tally.measures["half of the 95% interval"] = round(half_width, 1)
        asyncio.run(self._kill_engine(tally))

    async def _kill_engine(self, tally: Tally) -> None:
        """Kill the engine's process among requests, all of which must fail."""
        processes = self._processes()
        engine = next(
            process for process in processes if "EngineCore" in " ".join([process.name(), *process.cmdline()])
        )
        async with httpx.AsyncClient(timeout=_LATEST_SECONDS) as http:
            asked = [asyncio.ensure_future(ask(http, self._url, _ENDLESS, i % 2 == 0)) for i in range(_KILLED_AMONG)]
            await asyncio.sleep(0.5)
            running = [each for each in asked if not each.done()]
            tally.executions["requests in a server whose engine was killed"] += len(running)
            engine.kill()
            _, late = await asyncio.wait(asked, timeout=_LATEST_SECONDS)
            if late:
                tally.findings.append(f"{len(late)} requests do not end after the engine was killed")
            for each in late:
                each.cancel()
            for outcome in await asyncio.gather(*running, return_exceptions=True):
                if not isinstance(outcome, BaseException):
                    tally.findings.append(f"a request whose engine was killed is answered with {outcome}")
        _, alive = psutil.wait_procs(processes, timeout=_LATEST_SECONDS)
        if alive:
            tally.findings.append(f"processes are left after the engine was killed: {alive}")

    def close(self) -> None:
        with contextlib.suppress(AssertionError):  # it was killed
            self._exit.close()
        self._folder.cleanup()


make = Vllm
