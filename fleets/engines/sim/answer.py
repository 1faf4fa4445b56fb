"""Answers on their way to the client: a JSON body at the end, or a chunk for each token.

A chunk is a constant head, four letters, a constant tail; both, and the HTTP framing around them, are made once per answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import orjson

from fleets.engines.sim.http import Reply, framed
from fleets.engines.sim.openai import Generation, RequestError
from fleets.engines.sim.sequence import Finish, Sequence
from fleets.engines.sim.tokens import TOKEN_BYTES, WORDS, count, unpack_ids, words_text

_DONE = framed(b"data: [DONE]\n\n")


class StopFinder:
    """Looks for stop strings, and holds back what may be the beginning of one."""

    __slots__ = ("_holdback", "_stops", "reason", "sent", "text")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._holdback = max((len(stop) for stop in stops), default=1) - 1
        self.text = ""
        self.sent = 0
        self.reason: str | None = None

    def feed(self, word: str, last: bool) -> str:
        """What may be shown now. With `reason` set the text ends before that stop string."""
        self.text += word
        found = [(index, stop) for stop in self._stops if (index := self.text.find(stop)) >= 0]
        if found:
            index, self.reason = min(found)
            self.text = self.text[:index]
        end = len(self.text) if last or self.reason else max(self.sent, len(self.text) - self._holdback)
        shown, self.sent = self.text[self.sent : end], max(self.sent, end)
        return shown


class Answer(ABC):
    """All choices of one request. A subclass says what becomes of each token."""

    def __init__(self, want: Generation, reply: Reply, *, answer_id: str, model: str, created: int) -> None:
        self.want, self.reply = want, reply
        self.id, self.model, self.created = answer_id, model, created
        self.sequences: list[Sequence] = []
        self.finders = [StopFinder(want.stop) for _ in range(len(want.prompts) * want.choices)] if want.stop else []
        self.open = len(want.prompts) * want.choices
        self.kv_params: Callable[[Sequence], dict[str, Any] | None] = lambda _: None

    def usage(self) -> dict[str, Any]:
        """Tokens in, out, and those of the prompt that were in a cache."""
        firsts = self.sequences[:: self.want.choices]
        prompt = sum(count(packed) for packed in self.want.prompts)
        said = sum(len(sequence.words) for sequence in self.sequences)
        cached = sum(item.remote.cached_tokens if item.remote else item.cached for item in firsts)
        details = {"cached_tokens": cached, "created_cache_tokens": None, "multimodal_tokens": None}
        return {"prompt_tokens": prompt, "total_tokens": prompt + said, "completion_tokens": said, "prompt_tokens_details": details}

    def forget(self) -> None:
        """Let go of the sequences, which refer back here: their prompts would stay until a garbage collection."""
        self.sequences = []

    @abstractmethod
    def token(self, sequence: Sequence, word: int, finish: Finish | None) -> bool:
        """One more token."""

    @abstractmethod
    def failed(self, sequence: Sequence, detail: str) -> None:
        """The whole answer fails with one of its choices."""


class WholeAnswer(Answer):
    """One JSON body when every choice has ended."""

    def __init__(self, want: Generation, reply: Reply, *, answer_id: str, model: str, created: int) -> None:
        super().__init__(want, reply, answer_id=answer_id, model=model, created=created)
        self._finish: dict[int, Finish] = {}
        self._kv: dict[str, Any] | None = None

    def token(self, sequence: Sequence, word: int, finish: Finish | None) -> bool:
        if self.reply.done:  # another choice has failed
            return True
        stopped = False
        if self.finders:
            finder = self.finders[sequence.choice]
            finder.feed(WORDS[word].decode(), finish is not None)
            stopped = finder.reason is not None
        if finish is None and not stopped:
            return False
        self._finish[sequence.choice] = Finish.STOP if stopped else finish or Finish.STOP
        self._kv = self._kv or self.kv_params(sequence)
        self.open -= 1
        if not self.open:
            self.reply.send(200, orjson.dumps(self._body()))
            self.forget()
        return True

    def failed(self, sequence: Sequence, detail: str) -> None:
        self.reply.send(500, RequestError(500, f"Internal server error: {detail}", "InternalServerError").body)
        self.forget()

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion" if self.want.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(sequence) for sequence in self.sequences],
            "service_tier": None,
            "system_fingerprint": "denv-sim",
            "usage": self.usage() | {"completion_tokens_details": None},
        }
        if self.want.chat:
            body |= {"prompt_logprobs": None, "prompt_token_ids": self._prompt_ids(self.sequences[0]), "prompt_text": None}
        return body | {"kv_transfer_params": self._kv, "ec_transfer_params": None, "metrics": None}

    def _choice(self, sequence: Sequence) -> dict[str, Any]:
        finder = self.finders[sequence.choice] if self.finders else None
        text = finder.text if finder else words_text(sequence.words)
        ids = unpack_ids(sequence.packed_from(sequence.prompt_tokens)) if self.want.return_token_ids else None
        tail = {
            "logprobs": None,
            "finish_reason": self._finish[sequence.choice].value,
            "stop_reason": finder.reason if finder else None,
            "token_ids": ids,
        }
        if self.want.chat:
            nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
            return {"index": sequence.choice, "message": {"role": "assistant", "content": text, **nothing}, **tail, "routed_experts": None}
        prompt = {"prompt_logprobs": None, "prompt_token_ids": self._prompt_ids(sequence), "routed_experts": None}
        return {"index": sequence.choice, "text": text, **tail, **prompt}

    def _prompt_ids(self, sequence: Sequence) -> list[int] | None:
        return unpack_ids(sequence.packed) if self.want.return_token_ids else None


class StreamAnswer(Answer):
    """Server-sent events."""

    def __init__(self, want: Generation, reply: Reply, *, answer_id: str, model: str, created: int) -> None:
        super().__init__(want, reply, answer_id=answer_id, model=model, created=created)
        kind = b"chat.completion.chunk" if want.chat else b"text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            orjson.dumps(answer_id),
            kind,
            created,
            orjson.dumps(model),
        )
        self._frames = [self._frame(choice) for choice in range(self.open)]
        self._plain = not self.finders and not want.return_token_ids
        self._begun = False  # whether the roles of a chat are out

    def _opening(self, choice: int) -> bytes:
        form = b'%b{"index":%d,"delta":{"content":"' if self.want.chat else b'%b{"index":%d,"text":"'
        return form % (self._head, choice)

    def _closing(self, finish: bytes = b"null", ids: bytes = b"null", prompt_ids: bytes = b"null") -> bytes:
        chat, last = self.want.chat, finish != b"null"
        return b'%b"logprobs":null,"finish_reason":%b%b%b,"token_ids":%b}]%b}\n\n' % (
            b'"},' if chat else b'",',
            finish,
            b"" if chat and not last else b',"stop_reason":null',
            b"" if chat else b',"prompt_token_ids":' + prompt_ids,
            ids,
            b',"system_fingerprint":"denv-sim"' if last and not self.want.include_usage else b"",
        )

    def _frame(self, choice: int) -> tuple[bytes, bytes]:
        head, tail = self._opening(choice), self._closing()
        return b"%x\r\n%b" % (len(head) + TOKEN_BYTES + len(tail), head), tail + b"\r\n"

    def token(self, sequence: Sequence, word: int, finish: Finish | None) -> bool:
        reply = self.reply
        if reply.done:
            return True
        if finish is None and self._plain and len(sequence.words) > 1:  # nearly every token
            head, tail = self._frames[sequence.choice]
            reply.write(head + WORDS[word] + tail)
            return False
        return self._rare(sequence, word, finish)

    def _rare(self, sequence: Sequence, word: int, finish: Finish | None) -> bool:
        """First and last tokens, and all tokens of requests with stop strings, or that ask for token ids."""
        choice, text = sequence.choice, WORDS[word]
        data = self._roles()
        if self.finders:
            text = self.finders[choice].feed(text.decode(), finish is not None).encode()
            finish = Finish.STOP if self.finders[choice].reason else finish
        if text or finish is not None:
            reason = b"null" if finish is None else b'"%b"' % finish.value.encode()
            data += framed(self._opening(choice) + text + self._closing(reason, *self._ids(sequence, WORDS[word])))
        if finish is None:
            self.reply.write(data)
            return False
        self.open -= 1
        if self.open:
            self.reply.write(data)
        else:
            self.reply.end_stream(data + self._usage() + _DONE)
            self.forget()
        return True

    def _ids(self, sequence: Sequence, word: bytes) -> tuple[bytes, bytes]:
        """The token's id, and before the first one of a completion those of its prompt; nothing when nobody asked."""
        if not self.want.return_token_ids:
            return b"null", b"null"
        first = not self.want.chat and len(sequence.words) == 1
        prompt = unpack_ids(sequence.packed) if first else None
        return orjson.dumps(unpack_ids(word)), orjson.dumps(prompt)

    def _roles(self) -> bytes:
        """A chat's first events, one for each choice, once."""
        if self._begun or not self.want.chat:
            return b""
        self._begun = True
        ids = orjson.dumps(unpack_ids(self.want.prompts[0]) if self.want.return_token_ids else None)
        form = (
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
            b'"prompt_token_ids":%b,"prompt_text":null}\n\n'
        )
        return b"".join(framed(form % (self._head, choice, ids)) for choice in range(len(self._frames)))

    def _usage(self) -> bytes:
        if not self.want.include_usage:
            return b""
        return framed(self._head + b'],"usage":' + orjson.dumps(self.usage()) + b',"system_fingerprint":"denv-sim"}\n\n')

    def failed(self, sequence: Sequence, detail: str) -> None:
        """As vLLM: the head has gone out with 200, the error follows in the stream."""
        self.reply.start_stream()
        error = RequestError(500, f"Internal server error: {detail}", "InternalServerError").body
        self.reply.end_stream(self._roles() + framed(b"data: " + error + b"\n\n") + _DONE)
        self.forget()
