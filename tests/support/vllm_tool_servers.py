"""vLLM's HTTP servers with tool parsers, over one engine of a small model.

A server has one tool parser, and an engine takes half a minute to start: this program
starts one engine, and vLLM's own server over it for each of the parsers.

    python vllm_tool_servers.py PARSER=PORT,PARSER=PORT,... [vLLM's arguments]
"""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

THINKING = ("<think>", "</think>")
# As Qwen and GLM have some: tokens with a text, which other tokens spell too.
_MARKERS = ("<tool_call>", "</tool_call>", "</parameter>", "</arg_value>", "minimax:tool_call>")
# As DeepSeek and Kimi have them: tokens beside the text.
_SPECIAL_MARKERS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
# As Qwen's: a prompt ends the reasoning that is not wanted.
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def save_tool_model(folder: Path, tokenizer: Any = None, vocab_size: int = 512) -> Path:
    """Save a small model whose tokenizer has the markers of several formats.

    Args:
        folder: where; it must exist.
        tokenizer: a Hugging Face tokenizer. Default: a small byte-level one.
        vocab_size: the width of the lm_head.
    """
    from tokenizers import AddedToken

    from support.tokenizers_on_the_spot import byte_level, with_tokens
    from support.vllm_models import save_small_model

    tokens = [AddedToken(text, special=False) for text in (*THINKING, *_MARKERS)]
    tokens += [AddedToken(text, special=True) for text in _SPECIAL_MARKERS]
    tokenizer = with_tokens(tokenizer or byte_level(), tokens)
    return save_small_model(folder, tokenizer, vocab_size, chat_template=_CHAT_TEMPLATE)


@contextmanager
def tool_servers(
    model: Path, parsers: Sequence[str], log: Path, *arguments: str, **environment: str
) -> Iterator[dict[str, str]]:
    """The address of a server for each of vLLM's tool parsers.

    Args:
        model: the folder of ``save_tool_model``.
        parsers: names of vLLM's tool parsers.
        log: the file that gets the output.
        arguments: more of vLLM's arguments.
        environment: more environment variables.

    Raises:
        AssertionError: the servers did not start, or one of them ended by itself.
    """
    from support.server_processes import free_ports, running  # this file is a program, too

    ports = dict(zip(parsers, free_ports(len(parsers)), strict=True))
    command = [sys.executable, "-P", __file__, ",".join(f"{parser}={port}" for parser, port in ports.items())]
    command += ["--model", str(model), "--served-model-name", "small", "--host", "127.0.0.1", "--enforce-eager"]
    command += ["--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "64", "--reasoning-parser", "qwen3"]
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    settings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    urls = {parser: f"http://127.0.0.1:{port}" for parser, port in ports.items()}
    with running([*command, *arguments], settings | environment, log, urls.values()):
        yield urls


async def _serve(ports: dict[str, int], arguments: Any) -> None:
    from vllm.entrypoints.launchers.api_server.entry import build_and_serve, build_async_engine_client
    from vllm.entrypoints.launchers.launcher import setup_server

    async with build_async_engine_client(arguments) as engine:
        servers = []
        for parser, port in ports.items():
            own = copy.copy(arguments)
            own.enable_auto_tool_choice, own.tool_call_parser, own.port = True, parser, port
            address, listener = setup_server(own, reuse_port=False)
            servers.append(asyncio.create_task(build_and_serve(engine, address, listener, own)))
        done, _ = await asyncio.wait(servers, return_when=asyncio.FIRST_COMPLETED)  # the last one gets the signal
        for server in done:
            await server.result()


def main() -> None:
    try:  # vLLM 0.33
        from vllm.entrypoints.common.cli_args import make_arg_parser, validate_parsed_serve_args
        from vllm.entrypoints.common.startup import cli_env_setup
    except ImportError:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
        from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    ports = dict(pair.split("=") for pair in sys.argv.pop(1).split(","))
    cli_env_setup()
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    validate_parsed_serve_args(arguments)
    asyncio.run(_serve({parser: int(port) for parser, port in ports.items()}, arguments))


if __name__ == "__main__":
    main()
