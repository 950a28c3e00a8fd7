"""An OpenAI-compatible server in one file: FastAPI, transformers' continuous batching,
and a constraint for each request.

    pip install fastapi uvicorn openai
    python examples/openai_server.py --port 8000

    from openai import OpenAI
    client = OpenAI(base_url="http://localhost:8000/v1", api_key="none")
    answer = client.chat.completions.parse(model="demo", response_format=Order,
        messages=[{"role": "user", "content": "One pear, please."}])

    decision = client.decisions.create(model="demo", input="My card was charged twice.",
        questions=[{"type": "predicate", "instructions": "The customer is angry."}])

It serves ``/v1/chat/completions`` and ``/v1/completions``: ``response_format`` with
``json_schema`` (with ``strict``, objects have only keys that it names) or
``json_object``; ``tools`` with ``tool_choice``, with a reasoning in front as
``reasoning_content``; ``stream``; and, as in vLLM, ``structured_outputs`` with json,
regex, choice, grammar or structural_tag. A constraint compiles while other requests are
being decoded. ``/v1/decisions`` answers questions with the probability of each answer,
all questions on one input in one forward pass. What is not supported is answered with
status 400, and not ignored.
"""

import argparse
import asyncio
import copy
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

from structout import GrammarError, StructuredOutputManager, StructuredOutputsParams, decide
from structout.cli.demo_model import load_demo_model
from structout.constraints.tools.call_formats import TOOL_FORMATS, ToolFormat
from structout.integrations.transformers import structured_batching
from structout.integrations.transformers.prompts import chat_text

# For tokenizers without a chat template of their own.
TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content or m.tool_calls | tojson }}\n{% endfor %}assistant: "
)


# -- requests --------------------------------------------------------------------------


class StreamOptions(BaseModel, extra="forbid"):
    include_usage: bool = False


class Asked(BaseModel, extra="forbid"):
    """What both kinds of requests have."""

    model: str | None = None
    max_tokens: int = 256
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Literal[1] = 1
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None

    def params(self, tool_format: ToolFormat) -> StructuredOutputsParams | None:
        """The constraint, None if there is none.

        Raises:
            GrammarError: it is malformed.
        """
        if self.structured_outputs is not None:
            try:
                return StructuredOutputsParams(**self.structured_outputs)
            except TypeError as error:
                raise GrammarError(str(error)) from error
        match self.response_format:
            case None | {"type": "text"}:
                return None
            case {"type": "json_object"}:
                return StructuredOutputsParams(json_object=True)
            case {"type": "json_schema", "json_schema": {"schema": schema, **others}}:
                closes = "closed" if others.get("strict") else "schema"
                return StructuredOutputsParams(json=schema, additional_properties=closes)
        raise GrammarError(f"response_format is not supported: {json.dumps(self.response_format)}")


class Completion(Asked):
    prompt: str

    def text(self, tokenizer: Any, params: StructuredOutputsParams | None) -> str:
        """The prompt of the model."""
        return self.prompt


class ChatCompletion(Asked):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True

    def text(self, tokenizer: Any, params: StructuredOutputsParams | None) -> str:
        """The prompt of the model. It tells the model its tools, whatever its chat
        template does."""
        has_tools = params is not None and params.tools is not None
        return chat_text(tokenizer, self.messages, params, describe=has_tools)

    def params(self, tool_format: ToolFormat) -> StructuredOutputsParams | None:
        other = super().params(tool_format)
        if not self.tools or self.tool_choice == "none":
            return other
        return replace(
            StructuredOutputsParams() if other is None else other,
            tools=self.tools,
            tool_choice=self.tool_choice,
            tool_format=tool_format,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning="auto",
        )


# -- decoding --------------------------------------------------------------------------


@dataclass
class Piece:
    """What has come of a text.

    Attributes:
        text: the text so far.
        num_tokens: its tokens, the stop token included.
        reason: why it is finished; None while it is not.
    """

    text: str
    num_tokens: int
    reason: str | None


@dataclass
class Text:
    """One text that is decoded: its request, its constraint and its pieces."""

    request_id: str
    params: StructuredOutputsParams | None
    num_prompt_tokens: int
    pieces: AsyncIterator[Piece]

    def usage(self, piece: Piece) -> dict[str, int]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": piece.num_tokens,
            "total_tokens": self.num_prompt_tokens + piece.num_tokens,
        }


class Server:
    """The model, its batch and its constraints."""

    def __init__(self, tokenizer: Any, manager: StructuredOutputManager, batching: Any, tool_format: ToolFormat):
        self._tokenizer = tokenizer
        self._manager = manager
        self._batching = batching
        self._tool_format = tool_format
        self._numbers = itertools.count()

    async def begin(self, asked: Completion | ChatCompletion) -> Text:
        """Compile the constraint. The text begins with the first look at its pieces.

        Raises:
            GrammarError: the constraint is bad.
        """
        request_id = f"cmpl-{next(self._numbers)}"
        params = asked.params(self._tool_format)
        limit = (asked.max_completion_tokens if isinstance(asked, ChatCompletion) else None) or asked.max_tokens
        if params is not None:
            params.validate()
        text = asked.text(self._tokenizer, params)
        if params is not None:
            params = params.for_prompt(text)
            loop, is_settled = asyncio.get_running_loop(), asyncio.Event()
            self._manager.add_request(
                request_id,
                params,
                max_tokens=limit,  # below the shortest text, it is refused here
                on_settled=lambda *_: loop.call_soon_threadsafe(is_settled.set),
            )
            await is_settled.wait()
            if (error := self._manager.error(request_id)) is not None:
                self._manager.finish_request(request_id)
                raise error
        is_chat = isinstance(asked, ChatCompletion)
        prompt = self._tokenizer(text, add_special_tokens=not is_chat)["input_ids"]
        return Text(request_id, params, len(prompt), self._pieces(request_id, prompt, limit, params is not None))

    async def _pieces(
        self, request_id: str, prompt: Sequence[int], limit: int, is_constrained: bool
    ) -> AsyncIterator[Piece]:
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        self._batching.register_result_handler(request_id, outputs.put_nowait)
        constraint = {"structured_request": request_id} if is_constrained else {}
        self._batching.add_request(prompt, request_id=request_id, max_new_tokens=limit, streaming=True, **constraint)
        is_finished = False
        try:
            while not is_finished:
                output = await outputs.get()
                is_finished = output.is_finished()
                tokens = output.generated_tokens
                ends = is_finished and tokens[-1:] == [self._tokenizer.eos_token_id]
                # Special tokens may be part of a call, so their names are written.
                text = self._manager.vocabulary.text_of(tokens[: len(tokens) - ends], with_names=True)
                if is_finished or not text.endswith("\ufffd"):  # the end of a character may be missing
                    has_failed = output.error or request_id in self._batching.structured.errors
                    reason = "error" if has_failed else "stop" if ends else "length"
                    yield Piece(text, len(tokens), reason if is_finished else None)
        finally:
            if not is_finished:  # the client has gone
                self._batching.cancel_request(request_id)
                self._batching.output_router.result_handlers.pop(request_id, None)
            self._batching.structured.forget(request_id)
            self._manager.finish_request(request_id)


# -- answers ---------------------------------------------------------------------------


class Answer:
    """The answer to one request, whole or in events."""

    def __init__(self, asked: Completion | ChatCompletion, text: Text, model: str):
        self._asked, self._text = asked, text
        self._is_chat = isinstance(asked, ChatCompletion)
        self._object = "chat.completion" if self._is_chat else "text_completion"
        self._head = {"id": text.request_id, "created": int(time.time()), "model": model}
        has_tools = text.params is not None and text.params.tools is not None
        self._stream = text.params.tool_call_stream() if has_tools and text.params is not None else None
        self._num_calls = 0

    async def whole(self) -> dict[str, Any]:
        async for piece in self._text.pieces:
            last = piece
        delta = self._delta(last.text, is_last=True)
        content, calls = delta.get("content", ""), self._whole_calls(delta.get("tool_calls", ()))
        if self._is_chat:
            message = {"role": "assistant", "content": content or None if calls else content}
            message |= {name: text for name, text in delta.items() if name == "reasoning_content"}
            result = {"message": message | ({"tool_calls": calls} if calls else {})}
        else:
            result = {"text": content}
        choice = {"index": 0, **result, "finish_reason": "tool_calls" if calls else last.reason}
        return {**self._head, "object": self._object, "choices": [choice], "usage": self._text.usage(last)}

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events. The arguments of a call come as they are written."""
        num_sent = 0
        role = {"role": "assistant"} if self._is_chat else {}
        async for piece in self._text.pieces:
            delta = role | self._delta(piece.text[num_sent:], is_last=piece.reason is not None)
            reason = "tool_calls" if self._num_calls and piece.reason else piece.reason
            if delta or reason:
                result = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
                yield self._event([{"index": 0, **result, "finish_reason": reason}])
            num_sent, role = len(piece.text), {}
        if self._asked.stream_options.include_usage:
            yield self._event([], usage=self._text.usage(piece))
        yield "data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> str:
        name = f"{self._object}.chunk" if self._is_chat else self._object
        return f"data: {json.dumps({**self._head, 'object': name, 'choices': choices, **more})}\n\n"

    def _delta(self, text: str, *, is_last: bool) -> dict[str, Any]:
        """What a piece of text adds to the answer."""
        if self._stream is None:
            return {"content": text} if text else {}
        events = self._stream.feed(text) + (self._stream.finish(partial=True) if is_last else [])
        calls = []
        for event in events:
            if event.kind == "call":
                call = {"id": f"call-{self._text.request_id}-{event.index}", "type": "function"}
                calls.append({"index": event.index, **call, "function": {"name": event.text, "arguments": ""}})
            elif event.kind == "arguments":
                calls.append({"index": event.index, "function": {"arguments": event.text}})
            elif event.call is not None:
                self._num_calls += event.call.is_complete
        texts = {"reasoning_content": "reasoning", "content": "content"}
        parts = {name: "".join(event.text for event in events if event.kind == kind) for name, kind in texts.items()}
        return {name: text for name, text in parts.items() if text} | ({"tool_calls": calls} if calls else {})

    def _whole_calls(self, deltas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The complete calls that deltas make up."""
        calls: list[dict[str, Any]] = []
        for delta in deltas:
            if "id" in delta:
                calls.append({name: value for name, value in delta.items() if name != "index"})
            else:
                calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
        return calls[: self._num_calls]


# -- decisions -------------------------------------------------------------------------


class Message(BaseModel, extra="forbid"):
    role: Literal["system", "developer", "user", "assistant"]
    content: str
    type: Literal["message"] = "message"


class Predicate(BaseModel, extra="forbid"):
    type: Literal["predicate"]
    instructions: str
    name: str | None = None

    @property
    def asked(self) -> str:
        return f"Is this true? {self.instructions} Answer yes or no."

    @property
    def answers(self) -> list[str]:
        return ["yes", "no"]

    def answer(self, shares: list[float]) -> dict[str, Any]:
        return {"probability": shares[0]}


class Option(BaseModel, extra="forbid"):
    value: str | bool
    description: str | None = None


class Choice(BaseModel, extra="forbid"):
    type: Literal["choice"]
    instructions: str
    choices: list[Option] = Field(min_length=2, max_length=255)
    name: str | None = None

    @property
    def asked(self) -> str:
        listed = _listed(self.answers, [option.description for option in self.choices])
        return f"{self.instructions} Answer with one of:\n{listed}"

    @property
    def answers(self) -> list[str]:
        return [value if isinstance(value := option.value, str) else json.dumps(value) for option in self.choices]

    def answer(self, shares: list[float]) -> dict[str, Any]:
        values = [option.value for option in self.choices]
        of_values = [{"value": value, "probability": share} for value, share in zip(values, shares, strict=True)]
        return {"choice": values[shares.index(max(shares))], "confidence": max(shares), "probabilities": of_values}


class Level(BaseModel, extra="forbid"):
    label: str
    description: str | None = None


class Score(BaseModel, extra="forbid"):
    type: Literal["score"]
    instructions: str
    levels: list[Level] = Field(min_length=2, max_length=10)
    name: str | None = None

    @property
    def asked(self) -> str:
        listed = _listed(self.answers, [level.description for level in self.levels])
        return f"{self.instructions} Answer with one of these levels, the lowest first:\n{listed}"

    @property
    def answers(self) -> list[str]:
        return [level.label for level in self.levels]

    def answer(self, shares: list[float]) -> dict[str, Any]:
        levels = enumerate(zip(self.answers, shares, strict=True))
        of_levels = [{"value": i, "label": label, "probability": share} for i, (label, share) in levels]
        score = sum(i * share for i, share in enumerate(shares))
        return {"score": score, "confidence": max(shares), "probabilities": of_levels}


class Decisions(BaseModel, extra="forbid"):
    model: str | None = None
    input: str | list[Message]
    questions: list[Annotated[Predicate | Choice | Score, Field(discriminator="type")]] = Field(
        min_length=1, max_length=400
    )

    def messages(self, question: str) -> list[dict[str, str]]:
        """The input with a question at its end. Questions after the input let it be
        read once; templates want users and assistants to take turns."""
        given = [Message(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        messages = [{"role": message.role, "content": message.content} for message in given]
        if messages and messages[-1]["role"] == "user":
            question = f"{messages.pop()['content']}\n\n{question}"
        return [*messages, {"role": "user", "content": question}]


def decide_all(model: Any, tokenizer: Any, manager: StructuredOutputManager, asked: Decisions) -> dict[str, Any]:
    """The answers to all questions. Confidence is the probability of the likeliest
    answer; ``log_kept`` is structout's own.

    Raises:
        ValueError: answers are equal, or too long for the model.
    """
    if any(len(set(question.answers)) < len(question.answers) for question in asked.questions):
        raise ValueError("each answer to a question must be written once")
    prompts = []
    for question in asked.questions:
        text = chat_text(tokenizer, asked.messages(question.asked), None, describe=False)
        prompts.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    params = [StructuredOutputsParams(choice=question.answers) for question in asked.questions]
    answers = []
    decisions = decide(model, tokenizer, prompts, params=params, tokenizations="canonical", manager=manager)
    for question, decision in zip(asked.questions, decisions, strict=True):
        shares = dict(zip(decision.answers, decision.probabilities, strict=True))
        answer = question.answer([shares[text] for text in question.answers])
        answers.append({"type": question.type, "name": question.name, **answer, "log_kept": decision.log_kept})
    num_tokens = sum(map(len, prompts))
    usage = {"input_tokens": num_tokens, "output_tokens": 0, "total_tokens": num_tokens}
    usage["input_tokens_details"] = {"cached_tokens": 0, "cache_write_tokens": 0}
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    return {"answers": answers, "usage": usage}


def _listed(answers: list[str], descriptions: list[str | None]) -> str:
    pairs = zip(answers, descriptions, strict=True)
    return "\n".join(f"- {answer}" if text is None else f"- {answer}: {text}" for answer, text in pairs)


def create_app(
    model: Any,
    tokenizer: Any,
    *,
    name: str = "demo",
    tool_format: str | None = None,
    temperature: float = 1.0,
    num_blocks: int | None = None,
) -> FastAPI:
    """The application. It starts to decode with the server, and stops with it.

    Calls are written as the chat template writes them, unless ``tool_format`` names a
    format.
    """
    if tokenizer.chat_template is None:
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = TEMPLATE
    call_format = ToolFormat.from_tokenizer(tokenizer) if tool_format is None else TOOL_FORMATS[tool_format]

    # Continuous batching changes how its model attends; this one shares the parameters.
    tensors = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
    deciding_model = copy.deepcopy(model, tensors)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sampling = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
        generation = GenerationConfig(**sampling, eos_token_id=tokenizer.eos_token_id, pad_token_id=0)
        config = ContinuousBatchingConfig(num_blocks=num_blocks, max_batch_tokens=None if num_blocks is None else 256)
        width = model.get_output_embeddings().weight.shape[0]
        with (
            StructuredOutputManager(tokenizer, width) as manager,
            structured_batching(
                model, manager, generation_config=generation, continuous_batching_config=config
            ) as batching,
        ):
            batching.start()
            app.state.server = Server(tokenizer, manager, batching, call_format)
            app.state.manager = manager
            yield

    app = FastAPI(lifespan=lifespan)

    async def answer(asked: Completion | ChatCompletion) -> Any:
        made = Answer(asked, await app.state.server.begin(asked), name)
        if asked.stream:
            return StreamingResponse(made.events(), media_type="text/event-stream")
        return JSONResponse(await made.whole())

    @app.post("/v1/completions")
    async def complete(asked: Completion) -> Any:
        return await answer(asked)

    @app.post("/v1/chat/completions")
    async def chat(asked: ChatCompletion) -> Any:
        return await answer(asked)

    @app.post("/v1/decisions")
    async def decisions(asked: Decisions) -> Any:
        try:
            found = await asyncio.to_thread(decide_all, deciding_model, tokenizer, app.state.manager, asked)
        except ValueError as error:
            return _error(str(error), 400, param="questions")
        return {"model": name, **found}

    @app.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "structout"}]}

    @app.exception_handler(GrammarError)
    async def refuse(_: Request, error: GrammarError) -> JSONResponse:
        message = f"constraint refused ({error.kind.value}): {error}"
        return _error(message, 400 if error.client_fault else 503, param=error.pointer)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][1:]))
        return _error(f"{place}: {first['msg']}", 400, param=place)

    return app


def _error(message: str, status: int, param: str | None) -> JSONResponse:
    kind = "invalid_request_error" if status == 400 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": None}}, status)


def main() -> None:
    parser = argparse.ArgumentParser(description="serve a model with structured outputs")
    parser.add_argument("--model", help="a model of the Hugging Face Hub or a directory; default: the demo model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy")
    parser.add_argument("--tool-format", choices=TOOL_FORMATS, help="default: the chat template's")
    arguments = parser.parse_args()
    options = {"temperature": arguments.temperature, "tool_format": arguments.tool_format}
    if arguments.model is None:
        model, tokenizer, _ = load_demo_model()
        app = create_app(model, tokenizer, num_blocks=256, **options)
    else:
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype="auto", device_map="auto")
        app = create_app(model, AutoTokenizer.from_pretrained(arguments.model), name=arguments.model, **options)
    uvicorn.run(app, port=arguments.port)


if __name__ == "__main__":
    main()
