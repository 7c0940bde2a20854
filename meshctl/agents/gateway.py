"""The server of the OpenAI protocol to which agents speak: `chat/completions` and `models`.

It runs on the event loop of its process, and knows episodes by their tokens. It has no model: `answer` is a
function that the component gives, or that repeats a kept episode.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from meshctl.agents.trajectories import Forest, Message
from meshctl.data.chats import messages_of
from meshctl.data.errors import DataError
from meshctl.runtime.extras import extra

if TYPE_CHECKING:
    from aiohttp import web

MAX_BODY = 16 << 20
"""The largest body of a request in bytes."""
MAX_VOID = 4096
"""The number of tokens of ended episodes that are known as such."""
SHUTDOWN_S = 1.0
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "logit_bias"),
)
"""Options that are ignored with a warning, because the loss must know the distribution."""
IDLE = (
    *("model", "user", "metadata", "store", "service_tier", "stream_options", "reasoning_effort"),
    *("safety_identifier", "prompt_cache_key", "verbosity", "parallel_tool_calls", "top_logprobs"),
)
"""Options that mean nothing here."""
FIXED: Mapping[str, Sequence[Any]] = {
    "n": (1,),
    "logprobs": (False,),
    "tool_choice": ("auto",),
    "response_format": ({"type": "text"},),
}
"""Option -> its only values."""
HALF = rb"\ud"
"""The beginning of half of a surrogate pair in JSON."""
READ = ("messages", "tools", "max_tokens", "max_completion_tokens", "stop", "stream")
log = logging.getLogger(__name__)


class Refused(Exception):
    """A request that gets an error of the protocol."""

    def __init__(self, status: int, message: str, code: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code or None}}


class Request(NamedTuple):
    messages: Sequence[Message]
    tools: Sequence[Any] | None
    max_tokens: int | None
    stop: tuple[str, ...]


class Reply(NamedTuple):
    """The answer to a request."""

    key: str
    """Identifies the request in its episode."""
    message: Message
    finish_reason: str
    prompt_tokens: int
    tokens: int


class Episode:
    """A run of an agent, as its gateway sees it. Its methods run on the event loop."""

    def __init__(self, name: str, step: int = 0) -> None:
        """`name` is the number of the sample and that of the episode, such as 17.3. `step` is 0 in a pass."""
        self.name, self.step = name, step
        self.token = "sk-" + secrets.token_hex(16)
        self.forest = Forest()
        self.running = set[asyncio.Future[Any]]()
        """The requests that are not answered."""
        self.tool_errors = 0
        self.ended = asyncio.get_running_loop().create_future()
        """The limit that ends the episode, or the error of the engine."""

    def limit(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    def fail(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


Answer = Callable[[Episode, Request], Awaitable[Reply]]


class Gateway:
    """The server of one process."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._episodes: dict[str, Episode] = {}
        self._void: OrderedDict[str, None] = OrderedDict()
        """The tokens of ended episodes, the newest last."""
        self._warned = set[str]()
        self.rejected = 0
        """The number of requests without a valid token."""
        self.base_url = ""

    async def start(self, host: str) -> None:
        """Listens on a free port of the host."""
        with extra("agents"):
            from aiohttp import web
        self._web = web

        @web.middleware
        async def guarded(request: web.Request, handler: Any) -> web.StreamResponse:
            return await self._guarded(request, handler)

        app = web.Application(client_max_size=MAX_BODY, middlewares=[guarded])
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        # A request whose client has gone is cancelled.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.base_url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    async def stop(self) -> None:
        for episode in [*self._episodes.values()]:
            self.close(episode)
        await self._runner.cleanup()

    def open(self, episode: Episode) -> None:
        self._episodes[episode.token] = episode

    def close(self, episode: Episode) -> None:
        """Ends an episode: its token is void, and its requests are aborted."""
        if self._episodes.pop(episode.token, None):
            self._void[episode.token] = None
            if len(self._void) > MAX_VOID:
                self._void.popitem(last=False)
        for one in episode.running:
            one.cancel()
        if episode.ended.done() and not episode.ended.cancelled():
            episode.ended.exception()  # which is no longer of interest
        episode.ended.cancel()

    # Requests

    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answers errors in the form of the protocol."""
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except Refused as refused:
            return self._web.json_response(refused.body, status=refused.status)
        except self._web.HTTPException as error:  # such as 404, 405 and 413
            shown = {404: f"there is no {request.path}", 413: f"a body has at most {MAX_BODY} bytes"}
            body = Refused(error.status, shown.get(error.status, error.reason)).body
            return self._web.json_response(body, status=error.status)
        except Exception as error:
            log.exception("a request to the gateway")
            body = Refused(500, f"{type(error).__name__} in the gateway").body
            return self._web.json_response(body, status=500)

    def _authenticated(self, request: web.Request) -> Episode:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        if found := self._episodes.get(token):
            return found
        self.rejected += 1
        if token in self._void:
            raise Refused(410, "the episode of this token has ended", "episode_ended")
        self._warn("the gateway refuses a request without a valid token, from %s", request.remote)
        raise Refused(401, "the token is not that of a running episode", "invalid_api_key")

    async def _models(self, request: web.Request) -> web.Response:
        self._authenticated(request)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "meshctl"}
        return self._web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        episode = self._authenticated(request)
        try:
            body = json.loads(data := await request.read())
            if HALF in data.lower():
                json.dumps(body, ensure_ascii=False).encode()  # an error for half of a surrogate pair
            parsed = self._parsed(body)
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON") from None
        work = asyncio.ensure_future(self._answer(episode, parsed))
        episode.running.add(work)
        try:
            reply = await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():  # the client has gone
                raise
            raise Refused(410, "the episode has ended", "episode_ended") from None
        finally:
            episode.running.discard(work)
        return await self._sent(request, body, reply)

    def _parsed(self, body: Any) -> Request:
        if not isinstance(body, dict):
            raise Refused(400, "the body is not an object")
        for name, value in body.items():
            if name in SAMPLING and value is not None:
                self._warn("`%s` and other sampling options of agents are ignored: the recipe has them", name)
            elif name in FIXED and value is not None and value not in FIXED[name]:
                raise Refused(400, f"`{name}` is {FIXED[name][0]} here", "unsupported_value", name)
            elif name not in (*SAMPLING, *FIXED, *READ, *IDLE) and value is not None:
                raise Refused(400, f"there is no option `{name}` here", "unsupported_parameter", name)
        messages = self._messages(body.get("messages"))
        tools, stop = body.get("tools") or None, body.get("stop") or ()
        stop = (stop,) if isinstance(stop, str) else stop
        if not isinstance(stop, (list, tuple)) or not all(isinstance(one, str) and one for one in stop):
            raise Refused(400, "`stop` is a text or a list of texts", param="stop")
        is_list = tools is None or isinstance(tools, list)
        if not is_list or not all(map(_is_function, tools or ())):
            raise Refused(400, "`tools` is a list of functions with names", param="tools")
        most = body.get("max_completion_tokens", body.get("max_tokens"))
        if most is not None and (type(most) is not int or most < 1):
            raise Refused(400, "`max_tokens` is a positive integer", param="max_tokens")
        return Request(messages, tools, most, tuple(stop))

    def _messages(self, given: Any) -> list[dict[str, Any]]:
        """Returns messages in the form that templates read: contents as texts, and arguments of calls as
        data."""
        try:
            messages = messages_of(given, "messages")
        except DataError as error:
            raise Refused(400, str(error), param="messages") from None
        for message in messages:
            message.setdefault("content", "")
            if message["role"] == "developer":
                message["role"] = "system"
            if not isinstance(message["content"], str):
                raise Refused(400, "`content` is a text or a list of texts", param="messages")
            for call in message.get("tool_calls", ()):
                if not _is_function(call):
                    raise Refused(400, "`tool_calls` is a list of functions with names", param="messages")
        return messages

    def _warn(self, text: str, value: object) -> None:
        """Writes a warning, once."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text, value)

    async def _sent(self, request: web.Request, body: Mapping[str, Any], reply: Reply) -> web.StreamResponse:
        message = dict(reply.message)
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [
                {**call, "function": {**function, "arguments": json.dumps(function.get("arguments"))}}
                for call in calls
                for function in [call["function"]]
            ]
            message["content"] = message["content"] or None
        shared = {"id": f"chatcmpl-{reply.key}", "created": 0, "model": str(body.get("model", "policy"))}
        usage = {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.tokens,
            "total_tokens": reply.prompt_tokens + reply.tokens,
        }
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}
            whole = {**shared, "object": "chat.completion", "choices": [choice], "usage": usage}
            return self._web.json_response(whole)
        response = self._web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if calls:
            message["tool_calls"] = [{"index": n, **one} for n, one in enumerate(message["tool_calls"])]
        first = {"index": 0, "delta": message, "finish_reason": None}
        last = {"index": 0, "delta": {}, "finish_reason": reply.finish_reason}
        pieces: list[dict[str, Any]] = [{"choices": [first]}, {"choices": [last]}]
        options = body.get("stream_options")
        if isinstance(options, Mapping) and options.get("include_usage"):
            pieces.append({"choices": [], "usage": usage})
        for piece in pieces:
            data = json.dumps({**shared, "object": "chat.completion.chunk", **piece})
            await response.write(f"data: {data}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def _is_function(value: Any) -> bool:
    """Returns whether a tool, or a call of one, has the form of a function."""
    function = value.get("function") if isinstance(value, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)
