"""Real vLLM engines of small models, in this process.

Importing this module configures vLLM, so that it has to come before any engine.
"""

import gc
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # vLLM finds n-gram drafts with numba, which sets OpenMP's number of threads for the
    # model, too. On a busy machine they spin while they wait for one another.
    "NUMBA_NUM_THREADS": "1",
}

from vllm import LLM, RequestOutput, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.platforms.cpu import CpuPlatform

from structout.integrations.vllm import hooks
from structout.integrations.vllm.grammar_manager import GrammarManager

logging.getLogger("vllm").setLevel("WARNING")

PROMPT = '{"name": "Ada", "age": 36, "city": "London"} The quick brown fox'


class Engine:
    """An engine and what the tests look at in it.

    Attributes:
        llm: vLLM's ``LLM``.
        core: vLLM's ``EngineCore``.
        manager: the manager of the engine.
    """

    def __init__(self, llm: LLM):
        self.llm = llm
        self.core = llm.llm_engine.engine_core.engine_core
        self.manager: GrammarManager = self.core.structured_output_manager
        self._ids = itertools.count()

    @property
    def tokenizer(self) -> Any:
        return self.llm.get_tokenizer()

    @property
    def num_held(self) -> int:
        """How many requests structout's manager has for the scheduler."""
        assert self.manager.structout is not None
        num_followed = self.states.num_requests if getattr(self.manager, "is_shared", False) else 0
        return self.manager.structout.num_requests - num_followed

    @property
    def states(self) -> Any:
        """What the worker in this process keeps; None if it keeps no states."""
        runner = self.core.model_executor.driver_worker.worker.model_runner
        return getattr(runner, "structout_states", None)

    @property
    def is_idle(self) -> bool:
        return not self.llm.llm_engine.has_unfinished_requests()

    def assert_empty(self) -> None:
        """Check that no request is left. Those that are left end, for other tests."""
        left = list(self.llm.llm_engine.output_processor.request_states)
        if left:
            self.llm.llm_engine.abort_request(left, internal=True)
            self.step(2)
        assert not left
        assert self.num_held == 0

    def generate(
        self, params: Sequence[SamplingParams], prompts: Sequence[str] | str = PROMPT, *, reverse: bool = False
    ) -> list[RequestOutput]:
        """Generate a text for each of the params.

        Args:
            params: one for each request.
            prompts: one for each request, or one for all.
            reverse: whether the requests arrive in the opposite order.
        """
        texts = [prompts] * len(params) if isinstance(prompts, str) else list(prompts)
        order = slice(None, None, -1 if reverse else 1)
        # Validation changes the params.
        outputs = self.llm.generate(texts[order], [p.clone() for p in params[order]], use_tqdm=False)
        return outputs[order]

    def add(self, params: SamplingParams, prompt: str = PROMPT, request_id: str | None = None) -> str:
        """Add a request. Return its id."""
        request_id = request_id or f"added-{next(self._ids)}"
        self.llm.llm_engine.add_request(request_id, prompt, params.clone())
        return request_id

    def abort(self, *request_ids: str) -> None:
        self.llm.llm_engine.abort_request(list(request_ids))

    def step(self, num_steps: int = 1) -> list[RequestOutput]:
        """Run steps. Return the outputs of finished requests."""
        outputs = [output for _ in range(num_steps) for output in self.llm.llm_engine.step()]
        return [output for output in outputs if output.finished]

    def run(self) -> dict[str, RequestOutput]:
        """Run until all requests are finished. Return their outputs by id."""
        outputs: dict[str, RequestOutput] = {}
        while not self.is_idle:
            outputs |= {output.request_id: output for output in self.step()}
        return outputs


@contextmanager
def engine(
    model: Path, *, is_async: bool = False, keeps_states: bool | None = False, **arguments: Any
) -> Iterator[Engine]:
    """An engine in this process, which ends with the context.

    Args:
        model: the model's folder.
        is_async: whether to schedule asynchronously, which vLLM does not do on the CPU.
        keeps_states: whether the workers are to keep the states of grammars; None for
            the default.
        arguments: those of ``LLM``.
    """
    defaults = {
        "max_model_len": 512,
        "max_num_seqs": 64,
        "max_logprobs": -1,
        "num_gpu_blocks_override": 256,
        "enforce_eager": True,
        "dtype": "float32",
        "disable_log_stats": False,
    }
    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = is_async

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    if keeps_states is not None:
        os.environ["STRUCTOUT_VLLM_WORKER_STATES"] = str(int(keeps_states))
    try:
        llm = LLM(str(model), **defaults | arguments)
    finally:
        os.environ.pop("STRUCTOUT_VLLM_WORKER_STATES", None)
        CpuPlatform.check_and_update_config = classmethod(check)
    # vLLM does this in each process once: it looks into all modules, and not all that
    # are imported later let it.
    CpuPlatform.register_triton_kernel_overrides = classmethod(lambda cls: None)
    started = Engine(llm)
    assert (started.core.batch_queue is not None) == is_async
    try:
        yield started
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm, started
        gc.collect()
        cleanup_dist_env_and_memory()


@contextmanager
def vllm_sampler() -> Iterator[None]:
    """Running engines draw with vLLM's own sampler."""
    hooks.uninstall()
    try:
        yield
    finally:
        hooks.install()


def texts(outputs: Sequence[RequestOutput]) -> list[list[str]]:
    return [[completion.text for completion in output.outputs] for output in outputs]


def token_ids(outputs: Sequence[RequestOutput]) -> list[list[list[int]]]:
    return [[list(completion.token_ids) for completion in output.outputs] for output in outputs]


def finish_reasons(outputs: Sequence[RequestOutput]) -> list[list[str | None]]:
    return [[completion.finish_reason for completion in output.outputs] for output in outputs]
