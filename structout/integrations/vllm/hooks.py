"""The names in vLLM that structout replaces, and how they are put in place."""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("vllm.structout")


@dataclass(frozen=True)
class Hook:
    """A name in vLLM that structout replaces.

    Attributes:
        module: the vLLM module.
        name: the name in it, or ``Class.method``.
        make: called with the original; returns what replaces it.
        is_optional: whether some of the supported versions lack the name.
    """

    module: str
    name: str
    make: Callable[[Any], Any]
    is_optional: bool = False

    def owner(self) -> Any:
        """The module or class that has the name."""
        owner = importlib.import_module(self.module)
        for part in self.name.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    @property
    def attribute(self) -> str:
        return self.name.split(".")[-1]


_originals: dict[Hook, Any] = {}


def manager_hooks() -> list[Hook]:
    """The hooks of the frontend and of the scheduler."""
    from structout.integrations.vllm import custom_tools, engine_requests, handover, request_params

    parser, protocol = "vllm.parser.abstract_parser", "vllm.entrypoints.generate.base.protocol"
    responses, renderer = "vllm.entrypoints.openai.responses.protocol", "vllm.renderers.online_renderer"
    checked = "ResponsesRequest.check_custom_tool_format.__func__.__code__"  # pydantic holds the function
    return [
        Hook("vllm.v1.engine.core", "StructuredOutputManager", lambda original: handover.scheduler_manager),
        Hook("vllm.v1.engine.core", "MsgpackDecoder", engine_requests.decoding),
        Hook("vllm.v1.engine.core", "EngineCore.preprocess_add_request", engine_requests.preprocessing),
        Hook("vllm.sampling_params", "SamplingParams._validate_structured_outputs", request_params.validating),
        Hook(parser, "_xgrammar_supports", request_params.supporting, is_optional=True),
        Hook(parser, "structured_outputs_to_format", request_params.formatting, is_optional=True),
        Hook(protocol, "validate_structural_tag_payload", request_params.checking_tags, is_optional=True),
        Hook(responses, checked, lambda original: custom_tools.check_custom_tool_format.__code__, is_optional=True),
        Hook("vllm.tool_parsers.utils", "custom_tool_as_function_dict", custom_tools.describing, is_optional=True),
        Hook(renderer, "OnlineRenderer.preprocess_chat", custom_tools.preprocessing, is_optional=True),
        Hook(renderer, "OnlineRenderer.adjust_harmony_request", custom_tools.preprocessing_harmony, is_optional=True),
    ]


def sampler_hooks() -> list[Hook]:
    """The hooks of the workers, for both model runners: an engine chooses one later."""
    from vllm.triton_utils import HAS_TRITON

    from structout.integrations.vllm import grammar_manager

    structured_output = "vllm.v1.structured_output"
    return [
        Hook(structured_output, "StructuredOutputManager.accept_tokens", grammar_manager.ending_dead_ends),
        *_model_runner_v1_hooks(),
        *(_model_runner_v2_hooks() if HAS_TRITON else []),
    ]


def _model_runner_v1_hooks() -> list[Hook]:
    from structout.integrations.vllm import model_runner_v1, worker_states

    runner = "vllm.v1.worker.gpu_model_runner"
    return [
        Hook(runner, "apply_grammar_bitmask", model_runner_v1.applying_masks),
        Hook(runner, "GPUModelRunner.initialize_kv_cache", worker_states.keeping_states),
        Hook(runner, "GPUModelRunner._update_states", model_runner_v1.beginning_steps),
        Hook(runner, "GPUModelRunner._sample", model_runner_v1.sampling),
        Hook(runner, "GPUModelRunner._bookkeeping_sync", model_runner_v1.bookkeeping),
        Hook(runner, "GPUModelRunner.propose_draft_token_ids", model_runner_v1.drafting),
    ]


def _model_runner_v2_hooks() -> list[Hook]:
    from structout.integrations.vllm import model_runner_v2, worker_states

    gpu = "vllm.v1.worker.gpu"
    return [
        Hook(
            f"{gpu}.structured_outputs",
            "StructuredOutputsWorker.apply_grammar_bitmask",
            model_runner_v2.applying_masks,
        ),
        Hook(f"{gpu}.sample.batch_shard", "_shard_grammar_output", model_runner_v2.sharding_masks),
        Hook(f"{gpu}.sample.sampler", "Sampler.__call__", model_runner_v2.sampling),
        Hook(f"{gpu}.spec_decode.rejection_sampler", "RejectionSampler.__call__", model_runner_v2.verifying),
        Hook(f"{gpu}.model_runner", "GPUModelRunner.initialize_kv_cache", worker_states.keeping_states),
        Hook(f"{gpu}.model_runner", "GPUModelRunner.update_requests", model_runner_v2.beginning_steps),
        Hook(f"{gpu}.model_runner", "GPUModelRunner.sample", model_runner_v2.taking_masks),
        Hook(f"{gpu}.model_runner", "GPUModelRunner.postprocess_sampled", model_runner_v2.postprocessing),
    ]


def _exists(hook: Hook) -> bool:
    try:
        return hasattr(hook.owner(), hook.attribute)
    except (ImportError, AttributeError):
        return False


def install(*, with_manager: bool = True, with_sampler: bool = True) -> None:
    """Replace the names. Names that are replaced already stay as they are. If this vLLM
    lacks one of them, log a warning and replace none.

    Args:
        with_manager: whether structout checks, compiles and tracks constraints.
        with_sampler: whether structout draws the tokens.
    """
    replaced = {(hook.module, hook.name) for hook in _originals}
    try:
        wanted = [*(manager_hooks() if with_manager else []), *(sampler_hooks() if with_sampler else [])]
        new = [hook for hook in wanted if (hook.module, hook.name) not in replaced]
        found = [(hook, hook.owner()) for hook in new if not (hook.is_optional and not _exists(hook))]
        originals = {hook: getattr(owner, hook.attribute) for hook, owner in found}
    except (ImportError, AttributeError) as error:
        _log.warning("structout does not know this build of vLLM: %s. Structured output is vLLM's own.", error)
        return
    from structout.integrations.vllm import grammar_manager

    grammar_manager.GrammarManager.has_structout_workers = with_sampler
    for hook, owner in found:
        setattr(owner, hook.attribute, hook.make(originals[hook]))
    _originals.update(originals)


def uninstall() -> None:
    """Put vLLM's own names back. Engines keep the manager that they were made with, and
    their workers get its masks in vLLM's form."""
    from structout.integrations.vllm import grammar_manager

    grammar_manager.GrammarManager.has_structout_workers = False
    while _originals:
        hook, original = _originals.popitem()
        setattr(hook.owner(), hook.attribute, original)
