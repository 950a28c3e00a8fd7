"""Structured output for LLM inference in PyTorch.

Importing this registers ``torch.ops.structout.*``, as soon as torch has been imported:
the scheduler's side does not need it.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from structout import torch_import
from structout._version import __version__

if TYPE_CHECKING:
    from structout.constraints.config import StructuredOutputsConfig as StructuredOutputsConfig
    from structout.constraints.description import describe as describe
    from structout.constraints.limits import Limits as Limits
    from structout.constraints.params import (
        StructuredOutputOptions as StructuredOutputOptions,
        StructuredOutputsParams as StructuredOutputsParams,
    )
    from structout.distributed import (
        VocabParallelSampler as VocabParallelSampler,
        all_gather_bitmask as all_gather_bitmask,
        sharded_log_kept as sharded_log_kept,
        sharded_masked_sample as sharded_masked_sample,
        sharded_masked_sample_logprobs as sharded_masked_sample_logprobs,
        sharded_masked_sample_topn as sharded_masked_sample_topn,
        sharded_token_logprobs as sharded_token_logprobs,
    )
    from structout.errors import (
        CollectiveError as CollectiveError,
        DuplicateRequestError as DuplicateRequestError,
        GrammarError as GrammarError,
        GrammarErrorKind as GrammarErrorKind,
        GrammarLimitError as GrammarLimitError,
        GrammarTimeoutError as GrammarTimeoutError,
        StaleMasksError as StaleMasksError,
        StructOutError as StructOutError,
        UnknownRequestError as UnknownRequestError,
    )
    from structout.grammar.checking.checker import check as check
    from structout.grammar.checking.text_check import (
        Cause as Cause,
        Continuation as Continuation,
        TextCheck as TextCheck,
    )
    from structout.grammar.native.device_fsm import DeviceFSM as DeviceFSM, DeviceGrammar as DeviceGrammar
    from structout.grammar.registry import (
        BackendSet as BackendSet,
        check_params as check_params,
        register_backend as register_backend,
    )
    from structout.grammar.vocabulary import Vocabulary as Vocabulary
    from structout.integrations.transformers import (
        Decision as Decision,
        decide as decide,
        generate as generate,
        stream as stream,
    )
    from structout.masks.batch import MaskBatch as MaskBatch
    from structout.masks.bitmask import bitmask_width as bitmask_width, get_bitmask_shape as get_bitmask_shape
    from structout.ops.apply_bitmask import (
        apply_bitmask as apply_bitmask,
        apply_token_bitmask_inplace as apply_token_bitmask_inplace,
    )
    from structout.ops.fsm_states import (
        FsmTables as FsmTables,
        fsm_advance as fsm_advance,
        fsm_draft_states as fsm_draft_states,
        fsm_rows as fsm_rows,
    )
    from structout.ops.listed_logits import apply_logit_bias as apply_logit_bias, apply_penalties as apply_penalties
    from structout.ops.masked_sample import (
        masked_sample as masked_sample,
        masked_sample_logprobs as masked_sample_logprobs,
    )
    from structout.ops.sampler import (
        DeviceMasks as DeviceMasks,
        Drafts as Drafts,
        LogitBias as LogitBias,
        MaskedSampler as MaskedSampler,
        Penalties as Penalties,
        SamplerOutput as SamplerOutput,
        SamplingParams as SamplingParams,
    )
    from structout.ops.token_bitmask import (
        allocate_token_bitmask as allocate_token_bitmask,
        bitmask_dtype as bitmask_dtype,
        count_allowed as count_allowed,
        pack_bitmask as pack_bitmask,
        reset_token_bitmask as reset_token_bitmask,
        unpack_bitmask as unpack_bitmask,
    )
    from structout.ops.token_logprobs import (
        TokenLogprobs as TokenLogprobs,
        TopnSample as TopnSample,
        log_kept as log_kept,
        masked_sample_topn as masked_sample_topn,
        token_logprobs as token_logprobs,
    )
    from structout.ops.verify_drafts import verify_drafts as verify_drafts
    from structout.scheduler.manager import StructuredOutputManager as StructuredOutputManager
    from structout.scheduler.requests import GrammarStatus as GrammarStatus
    from structout.scheduler.stats import ManagerStats as ManagerStats

# By module, the names that it defines. Each is imported at its first use.
_NAMES = {
    "constraints.config": "StructuredOutputsConfig",
    "constraints.description": "describe",
    "constraints.limits": "Limits",
    "constraints.params": "StructuredOutputOptions StructuredOutputsParams",
    "distributed": (
        "VocabParallelSampler all_gather_bitmask sharded_log_kept sharded_masked_sample "
        "sharded_masked_sample_logprobs sharded_masked_sample_topn sharded_token_logprobs"
    ),
    "errors": (
        "CollectiveError DuplicateRequestError GrammarError GrammarErrorKind GrammarLimitError "
        "GrammarTimeoutError StaleMasksError StructOutError UnknownRequestError"
    ),
    "grammar.checking.checker": "check",
    "grammar.checking.text_check": "Cause Continuation TextCheck",
    "grammar.native.device_fsm": "DeviceFSM DeviceGrammar",
    "grammar.registry": "BackendSet check_params register_backend",
    "grammar.vocabulary": "Vocabulary",
    "integrations.transformers": "Decision decide generate stream",
    "masks.batch": "MaskBatch",
    "masks.bitmask": "bitmask_width get_bitmask_shape",
    "ops.apply_bitmask": "apply_bitmask apply_token_bitmask_inplace",
    "ops.fsm_states": "FsmTables fsm_advance fsm_draft_states fsm_rows",
    "ops.listed_logits": "apply_logit_bias apply_penalties",
    "ops.masked_sample": "masked_sample masked_sample_logprobs",
    "ops.sampler": "DeviceMasks Drafts LogitBias MaskedSampler Penalties SamplerOutput SamplingParams",
    "ops.token_bitmask": (
        "allocate_token_bitmask bitmask_dtype count_allowed pack_bitmask reset_token_bitmask unpack_bitmask"
    ),
    "ops.token_logprobs": "TokenLogprobs TopnSample log_kept masked_sample_topn token_logprobs",
    "ops.verify_drafts": "verify_drafts",
    "scheduler.manager": "StructuredOutputManager",
    "scheduler.requests": "GrammarStatus",
    "scheduler.stats": "ManagerStats",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
_SUBMODULES = ("distributed", "integrations", "jump_forward", "metrics")
_NEED_TORCH = ("distributed", "grammar.native.device_fsm", "integrations.transformers", "ops.")

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used.

    Where the ops are broken the package can be imported all the same, so that the
    doctor can name the cause; the names that need them raise ImportError.
    """
    module = name if name in _SUBMODULES else _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'structout' has no attribute {name!r}")
    if module.startswith(_NEED_TORCH):
        if importlib.util.find_spec("torch") is None:
            raise ImportError(f"structout.{name} needs torch, which is not installed: pip install 'torch>=2.10'")
        importlib.import_module("structout.ops.kernels").require()
    imported = importlib.import_module(f"structout.{module}")
    found = globals()[name] = imported if name in _SUBMODULES else getattr(imported, name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]


def _register_ops() -> None:
    if importlib.import_module("structout.ops.kernels").load().broken is None:
        for module in ("distributed.registration", *_NAMES):
            if module.startswith(("distributed.", "ops.")):
                importlib.import_module(f"structout.{module}")


torch_import.after_import(_register_ops)
