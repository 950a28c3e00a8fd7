"""Structured output for LLM inference in PyTorch. Importing this registers
``torch.ops.structout.*``."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from structout._version import __version__

# Without torch the package can be imported all the same, so that the doctor can name
# the cause.
if importlib.util.find_spec("torch") is not None:
    from structout.constraints.config import StructuredOutputsConfig
    from structout.constraints.description import describe
    from structout.constraints.limits import Limits
    from structout.constraints.params import StructuredOutputOptions, StructuredOutputsParams
    from structout.errors import (
        CollectiveError,
        DuplicateRequestError,
        GrammarError,
        GrammarErrorKind,
        GrammarLimitError,
        GrammarTimeoutError,
        StaleMasksError,
        StructOutError,
        UnknownRequestError,
    )
    from structout.masks.batch import MaskBatch
    from structout.masks.bitmask import (
        allocate_token_bitmask,
        bitmask_dtype,
        bitmask_width,
        count_allowed,
        get_bitmask_shape,
        pack_bitmask,
        reset_token_bitmask,
        unpack_bitmask,
    )
    from structout.ops import kernels

    if kernels.load().broken is None:
        from structout.distributed import registration  # noqa: F401 - registers the collective ops
        from structout.ops.apply_bitmask import apply_bitmask, apply_token_bitmask_inplace
        from structout.ops.fsm_states import FsmTables, fsm_advance, fsm_draft_states, fsm_rows
        from structout.ops.listed_logits import apply_logit_bias, apply_penalties
        from structout.ops.masked_sample import masked_sample, masked_sample_logprobs
        from structout.ops.sampler import (
            DeviceMasks,
            Drafts,
            LogitBias,
            MaskedSampler,
            Penalties,
            SamplerOutput,
            SamplingParams,
        )
        from structout.ops.token_logprobs import (
            TokenLogprobs,
            TopnSample,
            log_kept,
            masked_sample_topn,
            token_logprobs,
        )
        from structout.ops.verify_drafts import verify_drafts

if TYPE_CHECKING:
    from structout.distributed import (
        VocabParallelSampler,
        all_gather_bitmask,
        sharded_log_kept,
        sharded_masked_sample,
        sharded_masked_sample_logprobs,
        sharded_masked_sample_topn,
        sharded_token_logprobs,
    )
    from structout.grammar.checking.checker import check
    from structout.grammar.checking.text_check import Cause, Continuation, TextCheck
    from structout.grammar.native.device_fsm import DeviceFSM, DeviceGrammar
    from structout.grammar.registry import BackendSet, check_params, register_backend
    from structout.grammar.vocabulary import Vocabulary
    from structout.integrations.transformers import Decision, decide, generate, stream
    from structout.scheduler.manager import StructuredOutputManager
    from structout.scheduler.requests import GrammarStatus
    from structout.scheduler.stats import ManagerStats

__all__ = [
    "BackendSet",
    "Cause",
    "CollectiveError",
    "Continuation",
    "Decision",
    "DeviceFSM",
    "DeviceGrammar",
    "DeviceMasks",
    "Drafts",
    "DuplicateRequestError",
    "FsmTables",
    "GrammarError",
    "GrammarErrorKind",
    "GrammarLimitError",
    "GrammarStatus",
    "GrammarTimeoutError",
    "Limits",
    "LogitBias",
    "ManagerStats",
    "MaskBatch",
    "MaskedSampler",
    "Penalties",
    "SamplerOutput",
    "SamplingParams",
    "StaleMasksError",
    "StructOutError",
    "StructuredOutputManager",
    "StructuredOutputOptions",
    "StructuredOutputsConfig",
    "StructuredOutputsParams",
    "TextCheck",
    "TokenLogprobs",
    "TopnSample",
    "UnknownRequestError",
    "VocabParallelSampler",
    "Vocabulary",
    "__version__",
    "all_gather_bitmask",
    "allocate_token_bitmask",
    "apply_bitmask",
    "apply_logit_bias",
    "apply_penalties",
    "apply_token_bitmask_inplace",
    "bitmask_dtype",
    "bitmask_width",
    "check",
    "check_params",
    "count_allowed",
    "decide",
    "describe",
    "fsm_advance",
    "fsm_draft_states",
    "fsm_rows",
    "generate",
    "get_bitmask_shape",
    "log_kept",
    "masked_sample",
    "masked_sample_logprobs",
    "masked_sample_topn",
    "pack_bitmask",
    "register_backend",
    "reset_token_bitmask",
    "sharded_log_kept",
    "sharded_masked_sample",
    "sharded_masked_sample_logprobs",
    "sharded_masked_sample_topn",
    "sharded_token_logprobs",
    "stream",
    "token_logprobs",
    "unpack_bitmask",
    "verify_drafts",
]

_MODULE_OF = {
    "BackendSet": "grammar.registry",
    "Cause": "grammar.checking.text_check",
    "Continuation": "grammar.checking.text_check",
    "Decision": "integrations.transformers",
    "DeviceFSM": "grammar.native.device_fsm",
    "DeviceGrammar": "grammar.native.device_fsm",
    "GrammarStatus": "scheduler.requests",
    "ManagerStats": "scheduler.stats",
    "StructuredOutputManager": "scheduler.manager",
    "TextCheck": "grammar.checking.text_check",
    "VocabParallelSampler": "distributed",
    "Vocabulary": "grammar.vocabulary",
    "all_gather_bitmask": "distributed",
    "check": "grammar.checking.checker",
    "check_params": "grammar.registry",
    "decide": "integrations.transformers",
    "generate": "integrations.transformers",
    "register_backend": "grammar.registry",
    "sharded_log_kept": "distributed",
    "sharded_masked_sample": "distributed",
    "sharded_masked_sample_logprobs": "distributed",
    "sharded_masked_sample_topn": "distributed",
    "sharded_token_logprobs": "distributed",
    "stream": "integrations.transformers",
}

_LAZY_SUBMODULES = ("distributed", "integrations", "jump_forward", "metrics")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used.

    Workers need no grammar engine, so the manager is not imported with the package. The
    package can be imported even if its ops are broken, so that the doctor can name the
    cause; the names that need the ops raise ImportError.
    """
    if name in (*_LAZY_SUBMODULES, *__all__) and importlib.util.find_spec("torch") is None:
        raise ImportError(f"structout.{name} needs torch, which is not installed: pip install 'torch>=2.10'")
    if name in _LAZY_SUBMODULES:
        return importlib.import_module(f"structout.{name}")
    if name in _MODULE_OF:
        found = globals()[name] = getattr(importlib.import_module(f"structout.{_MODULE_OF[name]}"), name)
        return found
    if name in __all__:
        kernels.require()
    raise AttributeError(f"module 'structout' has no attribute {name!r}")
