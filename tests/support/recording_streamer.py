"""RecordingStreamer: what a decoding loop streams, for tests to look at."""

import torch


class RecordingStreamer:
    """A streamer of transformers that keeps the tokens.

    Attributes:
        tokens: the ids of all tokens so far, those of the prompt first.
        has_ended: whether the loop has called ``end``.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.has_ended = False

    def put(self, tokens: torch.Tensor) -> None:
        self.tokens += tokens.flatten().tolist()

    def end(self) -> None:
        self.has_ended = True
