"""A server with streaming: FastAPI, transformers' continuous batching, and a constraint
for each request.

    pip install fastapi uvicorn
    python examples/fastapi_server.py --port 8000
    curl -N localhost:8000/v1/completions -H 'Content-Type: application/json' \
        -d '{"prompt": "A code: ", "structured_outputs": {"regex": "[A-Z]{9}"},
             "stream": true}'

Requests and answers are those of OpenAI's completions: ``response_format`` with a
``json_schema``, or ``structured_outputs`` as in vLLM with json, regex, choice or
grammar. A constraint compiles while other requests are being decoded; a bad one is
answered with status 400.
"""

import argparse
import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

from structout import GrammarError, StructuredOutputManager, StructuredOutputsParams
from structout.cli.demo_model import load_demo_model
from structout.integrations.transformers import structured_batching


class Completion(BaseModel, extra="forbid"):
    """What a client asks for."""

    prompt: str
    max_tokens: int = 256
    stream: bool = False
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    def params(self) -> StructuredOutputsParams | None:
        """The constraint, None if there is none.

        Raises:
            GrammarError: it is malformed.
        """
        if self.structured_outputs is not None:
            try:
                params = StructuredOutputsParams(**self.structured_outputs)
            except TypeError as error:
                raise GrammarError(str(error)) from error
        elif self.response_format is not None and self.response_format.get("type") == "json_schema":
            params = StructuredOutputsParams(json=self.response_format["json_schema"]["schema"])
        elif self.response_format is not None and self.response_format.get("type") == "json_object":
            params = StructuredOutputsParams(json_object=True)
        else:
            return None
        params.validate()
        return params


class Server:
    """The model, its batch and its constraints."""

    def __init__(self, tokenizer: Any, manager: StructuredOutputManager, batching: Any):
        self._tokenizer = tokenizer
        self._manager = manager
        self._batching = batching
        self._numbers = itertools.count()

    async def add(self, completion: Completion) -> str:
        """Compile the constraint. Return the id of the request.

        Raises:
            GrammarError: the constraint is bad.
        """
        request_id = f"cmpl-{next(self._numbers)}"
        params = completion.params()
        if params is not None:
            loop, is_settled = asyncio.get_running_loop(), asyncio.Event()
            self._manager.add_request(
                request_id, params, on_settled=lambda *_: loop.call_soon_threadsafe(is_settled.set)
            )
            await is_settled.wait()
            if (error := self._manager.error(request_id)) is not None:
                self._manager.finish_request(request_id)
                raise error
        return request_id

    async def texts(self, request_id: str, completion: Completion) -> AsyncIterator[tuple[str, str | None]]:
        """Yield each new piece of the text, and at its end the reason to finish."""
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        self._batching.register_result_handler(request_id, outputs.put_nowait)
        is_constrained = completion.params() is not None
        self._batching.add_request(
            self._tokenizer(completion.prompt)["input_ids"],
            request_id=request_id,
            max_new_tokens=completion.max_tokens,
            streaming=True,
            **({"structured_request": request_id} if is_constrained else {}),
        )
        sent, is_finished = "", False
        try:
            while not is_finished:
                output = await outputs.get()
                is_finished = output.is_finished()
                text = self._tokenizer.decode(output.generated_tokens, skip_special_tokens=True)
                reason = self._reason(output) if is_finished else None
                if is_finished or not text.endswith("\ufffd"):  # the end of a character may be missing
                    yield text[len(sent) :], reason
                    sent = text
        finally:
            if not is_finished:  # the client has gone
                self._batching.cancel_request(request_id)
                self._batching.output_router.result_handlers.pop(request_id, None)
            self._batching.structured.forget(request_id)
            self._manager.finish_request(request_id)

    def _reason(self, output: Any) -> str:
        if output.error or output.request_id in self._batching.structured.errors:
            return "error"
        return "stop" if output.generated_tokens[-1:] == [self._tokenizer.eos_token_id] else "length"


def create_app(model: Any, tokenizer: Any, *, temperature: float = 1.0, num_blocks: int | None = None) -> FastAPI:
    """The application. It starts to decode with the server, and stops with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        generation = GenerationConfig(
            do_sample=True, temperature=temperature, eos_token_id=tokenizer.eos_token_id, pad_token_id=0
        )
        config = ContinuousBatchingConfig(num_blocks=num_blocks, max_batch_tokens=None if num_blocks is None else 256)
        width = model.get_output_embeddings().weight.shape[0]
        with (
            StructuredOutputManager(tokenizer, width) as manager,
            structured_batching(
                model, manager, generation_config=generation, continuous_batching_config=config
            ) as batching,
        ):
            batching.start()
            app.state.server = Server(tokenizer, manager, batching)
            app.state.manager = manager
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/completions")
    async def complete(completion: Completion) -> Any:
        server: Server = app.state.server
        try:
            request_id = await server.add(completion)
        except GrammarError as error:
            raise HTTPException(400, f"constraint refused ({error.kind.value}): {error}") from error
        pieces = server.texts(request_id, completion)
        if completion.stream:
            return StreamingResponse(_events(request_id, pieces), media_type="text/event-stream")
        received = [piece async for piece in pieces]
        choice = {"index": 0, "text": "".join(text for text, _ in received), "finish_reason": received[-1][1]}
        return JSONResponse({"id": request_id, "choices": [choice]})

    return app


async def _events(request_id: str, pieces: AsyncIterator[tuple[str, str | None]]) -> AsyncIterator[str]:
    async for piece, reason in pieces:
        choice = {"index": 0, "text": piece, "finish_reason": reason}
        yield f"data: {json.dumps({'id': request_id, 'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="serve a model with structured outputs")
    parser.add_argument("--model", help="a model of the Hugging Face Hub or a directory; default: a demo model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--temperature", type=float, default=1.0)
    arguments = parser.parse_args()
    if arguments.model is None:
        model, tokenizer, _ = load_demo_model()
        app = create_app(model, tokenizer, temperature=arguments.temperature, num_blocks=256)
    else:
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype="auto", device_map="auto")
        app = create_app(model, AutoTokenizer.from_pretrained(arguments.model), temperature=arguments.temperature)
    uvicorn.run(app, port=arguments.port)


if __name__ == "__main__":
    main()
