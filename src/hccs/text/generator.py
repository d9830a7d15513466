"""`Generator`: prompts in, their continuations out, piece by piece or whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from hccs.errors import DataError
from hccs.program.generation import Request, drained, generate
from hccs.program.model import IntegerModel
from hccs.program.program import GENERATE, TextSettings
from hccs.text.text_model import TextModel, list_of_texts

PRECEDING = 8
"""Tokens of a prompt that its continuation is written after."""

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer writes for bytes that are no whole character yet."""


@dataclass(frozen=True)
class Generated:
    """A continuation and its tokens, the seed that names it, and why it ended."""

    text: str
    tokens: list[int]
    seed: int
    end: str


class Generator(TextModel):
    """Texts by a causal language model in integers: a prompt, the options and a seed name one text.

    `Generator.load("model.hccs").generate("Once upon a time", temperature=0.8, seed=7).text` is the same text
    on every machine.
    """

    kinds = (GENERATE,)

    def _settings_of(self, model: IntegerModel) -> TextSettings | None:
        """A language model with a tokenizer needs no settings."""
        program = model.program
        return program.text or TextSettings(GENERATE, program.longest)

    @overload
    def generate(self, prompts: str, **options: Any) -> Generated: ...
    @overload
    def generate(self, prompts: list[str], **options: Any) -> list[Generated]: ...
    def generate(
        self,
        prompts: str | list[str],
        *,
        on_text: Callable[[int, str], object] | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> Generated | list[Generated]:
        """Continue one prompt or a list of them, with the options of `IntegerModel.generate`.

        `on_text` is called with the number of a prompt and each new piece of its text, of whole characters.
        Texts end before the tokens that the file names, and before those of `stop`.
        """
        request = self._request([prompts] if isinstance(prompts, str) else list_of_texts(prompts), options)
        pieces = [_Pieces(self._reader.decode, prompt.tolist()) for prompt in request.prompts]

        def hear(number: int, token: int) -> None:
            piece = pieces[number].next(token)
            if on_text is not None and piece:
                on_text(number, piece)

        found = drained(generate(self.model, request, reference=False, threads=threads), hear)
        for number, rest in enumerate(pieces):
            last = rest.rest()
            if on_text is not None and last:
                on_text(number, last)
        found_texts = zip(pieces, found.tokens, found.seeds, found.ends, strict=True)
        texts = [Generated(piece.text, tokens, seed, end) for piece, tokens, seed, end in found_texts]
        return texts[0] if isinstance(prompts, str) else texts

    def stream(self, prompt: str, *, threads: int | None = None, **options: Any) -> Iterator[str]:
        """The pieces of a prompt's continuation, each of whole characters, as soon as they are known."""
        request = self._request([prompt], options)
        steps = generate(self.model, request, reference=False, threads=threads)
        return _texts(steps, _Pieces(self._reader.decode, request.prompts[0].tolist()))

    def _request(self, prompts: list[str], options: dict[str, Any]) -> Request:
        encodings = self._reader.read(prompts)
        for number, encoding in enumerate(encodings):
            if encoding.overflowing:
                raise DataError(
                    f"prompts of at most {self.max_length} tokens",
                    f"more in prompt {number}",
                    "Shorten it, or lower the model for more.",
                )
        stop = {*_numbers(options.pop("stop", ())), *self._reader.tokens(self.settings.stop)}
        return Request.of(self.model, [encoding.ids for encoding in encodings], stop=sorted(stop), **options)


def _numbers(stop: Any) -> list[Any]:
    return [stop] if not hasattr(stop, "__iter__") else list(stop)


def _texts(steps: Any, pieces: _Pieces) -> Iterator[str]:
    for _, token in steps:
        if piece := pieces.next(token):
            yield piece
    if last := pieces.rest():
        yield last


class _Pieces:
    """The text of tokens that come one by one; bytes of a character wait until all of them are there.

    Tokens are decoded together with a few before them, the last of the prompt at first: a tokenizer may write
    a token by what precedes it.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._tokens = list(prompt[-PRECEDING:])
        self._before, self._said = 0, len(self._tokens)
        self.text = ""

    def next(self, token: int) -> str:
        self._tokens.append(token)
        return self._new(whole=True)

    def rest(self) -> str:
        """What is left at the end, if it is no whole character."""
        return self._new(whole=False)

    def _new(self, whole: bool) -> str:
        old = self._decode(self._tokens[self._before : self._said])
        now = self._decode(self._tokens[self._before :])
        if len(now) <= len(old) or (whole and now.endswith(UNFINISHED)):
            return ""
        self._before, self._said = self._said, len(self._tokens)
        self.text += now[len(old) :]
        return now[len(old) :]
