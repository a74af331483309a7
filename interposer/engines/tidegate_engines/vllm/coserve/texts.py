"""Texts and conversations as tokens, by the tokenizer and the chat template of the engine's own front end."""

from __future__ import annotations

import threading
from typing import Any

from .messages import Encode, Refused


class Texts:
    """The tokenizer is loaded with the first text. Used by the threads of connections, one at a time."""

    def __init__(self, config: Any) -> None:
        self._config, self._lock = config, threading.Lock()
        self._tokenizer: Any = None

    def __call__(self, asked: Encode) -> dict[str, Any]:
        """Tokens, and of each whether it is learnt: ``weights[i]`` is for predicting token ``i``."""
        if (asked.messages is None) == (asked.text is None):
            raise Refused("bad_request", "encode takes either messages or text")
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._load()
            if asked.text is not None:
                tokens = list(self._tokenizer.encode(asked.text))
                # The first token is predicted by nothing.
                return {"tokens": tokens, "weights": [0] * min(len(tokens), 1) + [1] * max(len(tokens) - 1, 0)}
            return self._conversation(asked.messages or [], asked.learn)

    def _load(self) -> Any:
        if getattr(self._config, "skip_tokenizer_init", False):
            raise Refused("unsupported", "the engine was started without a tokenizer (--skip-tokenizer-init)")
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(
                self._config.tokenizer,
                revision=self._config.tokenizer_revision,
                trust_remote_code=self._config.trust_remote_code,
            )
        except Exception as error:
            raise Refused("unsupported", f"its tokenizer cannot be loaded: {error}") from error

    def _template(self, messages: list[dict[str, Any]], ask: bool) -> list[int]:
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
        except Exception as error:
            raise Refused("bad_request", f"the chat template refuses the messages: {error}") from error
        # The template writes the special tokens itself.
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _conversation(self, messages: list[dict[str, Any]], learn: str) -> dict[str, Any]:
        for at, message in enumerate(messages):
            if not isinstance(message.get("role"), str):
                raise Refused("bad_request", f"messages[{at}].role is missing")
        if not messages:
            raise Refused("bad_request", "messages is empty")
        tokens = self._template(messages, False)
        if learn == "all":
            return {"tokens": tokens, "weights": [0] + [1] * (len(tokens) - 1)}
        weights = [0] * len(tokens)
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, until = self._template(messages[:at], True), self._template(messages[: at + 1], False)
            if tokens[: len(until)] != until or until[: len(before)] != before:
                raise Refused(
                    "unsupported",
                    f"messages[{at}]: the chat template writes a turn differently when others follow; "
                    'send learn="all", or a conversation that ends with its only assistant turn',
                )
            weights[len(before) : len(until)] = [1] * (len(until) - len(before))
        if not any(weights):
            raise Refused("bad_request", "messages has no turn of the assistant")
        return {"tokens": tokens, "weights": weights}
