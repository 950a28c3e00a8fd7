"""One text as it grows."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from structout.grammar.vocabulary import Vocabulary
from structout.integrations.transformers.decode import Monitor, Text
from structout.integrations.transformers.generation import Generation, generate
from structout.integrations.transformers.manager_cache import shared_manager
from structout.integrations.transformers.prompts import list_of_prompts
from structout.scheduler.manager import StructuredOutputManager


class TextStream(Iterator[str]):
    """The pieces of a text that a thread generates, for a ``for`` loop.

    A piece is what one step has added, in whole characters. :meth:`close`, garbage
    collection or the end of the main thread stops the thread after its step.
    """

    def __init__(self, pieces: "_Pieces", generation: Future[Generation]):
        self._pieces = pieces
        self._generation = generation

    def __next__(self) -> str:
        piece = self._pieces.queue.get()
        if piece is None:
            self._pieces.queue.put(None)  # for the next call
            self._generation.result()  # raises what generate raised
            raise StopIteration
        return piece

    @property
    def result(self) -> Generation:
        """The result, as :func:`generate` returns it. Waits for the end of the text.

        Raises:
            CancelledError: the stream was closed.
        """
        return self._generation.result()

    def close(self) -> None:
        """Stop generating. Pieces that are there can still be read."""
        self._pieces.is_closed = True

    def __del__(self) -> None:
        self.close()


class _Pieces(Monitor):
    """Cuts a growing text into pieces."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._num_sent = 0
        self.queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.is_closed = False

    def after_step(self, texts: Sequence[Text]) -> None:
        if self.is_closed or not threading.main_thread().is_alive():
            raise CancelledError("the stream was closed")
        text = self._vocabulary.text_of(texts[0].content, with_names=True)
        self.send(text.rstrip("\N{REPLACEMENT CHARACTER}"))  # the last character may lack bytes

    def send(self, text: str) -> None:
        if len(text) > self._num_sent:
            self.queue.put(text[self._num_sent :])
            self._num_sent = len(text)


def stream(
    model: Any, tokenizer: Any, prompt: Any, *, manager: StructuredOutputManager | None = None, **options: Any
) -> TextStream:
    """Generate one text in a thread, and iterate over its pieces as they come.

    ::

        pieces = structout.stream(model, tokenizer, prompt, json=Order)
        for piece in pieces:
            print(piece, end="", flush=True)
        order = pieces.result.parsed[0]

    Args:
        model: as in :func:`generate`, as are the others.
        tokenizer: the same.
        prompt: one prompt.
        manager: the same.
        **options: arguments of :func:`generate`, but ``monitor`` and ``streamer``.

    Returns:
        an iterator. Errors of :func:`generate` are raised where the text breaks off.

    Raises:
        ValueError: there is more than one prompt or text.
    """
    if (count := options.get("num_return_sequences", 1)) != 1:
        raise ValueError(f"stream gives one text, got num_return_sequences={count}: see generate for more")
    if manager is None:
        manager = shared_manager(tokenizer, model.get_output_embeddings().weight.shape[0])
    generate_text = partial(generate, model, tokenizer, prompt, manager=manager, **options)
    return stream_of(prompt, manager.vocabulary, generate_text)


def stream_of(prompt: Any, vocabulary: Vocabulary, generate_text: Callable[..., Generation]) -> TextStream:
    """The pieces of a text that a function generates, in a thread.

    Args:
        prompt: one prompt.
        vocabulary: of the model.
        generate_text: takes a ``monitor``, which it calls after each step.

    Raises:
        ValueError: there is more than one prompt.
    """
    if (count := len(list_of_prompts(prompt))) != 1:
        raise ValueError(f"stream takes one prompt, got {count}: see generate for batches")
    pieces = _Pieces(vocabulary)
    generation: Future[Generation] = Future()

    def run() -> None:
        try:
            result = generate_text(monitor=pieces)
            pieces.send(result.texts[0])
            generation.set_result(result)
        except BaseException as error:  # for the thread that reads the pieces
            generation.set_exception(error)
        finally:
            pieces.queue.put(None)

    threading.Thread(target=run, name="structout-stream").start()  # a pool's would keep the process alive
    return TextStream(pieces, generation)
