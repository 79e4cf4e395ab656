"""`twofold serve`: one trained model behind transformers' own server, which OpenAI clients can talk to."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI
    from transformers import PreTrainedTokenizerFast

    from twofold.models.decoder import TwofoldForCausalLM

EXAMPLES = """[bold]Examples[/bold]
  twofold serve runs/demo/runs/K=V_MQA_seed0
  twofold serve runs/mine --host 0.0.0.0 --port 8123"""

NEEDS = ("fastapi", "openai", "uvicorn")
"""What transformers' server imports; the extra `serve` installs it."""

TEMPERATURE = 0.8
"""Where a request names none; the same as in `twofold generate`."""


class EndedError(Exception):
    """The server was told to end while it generated."""


def serve(
    model: Annotated[Path, typer.Argument(help="A folder that `train`, `study run`, `convert` or `heal` wrote.")],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8000,
) -> None:
    """Answer OpenAI clients with one model, until Ctrl-C: completions, chat completions and responses.

    The server is transformers' own. It reads nothing but the folder, and asks for no key.
    """
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ValueError(f"serving needs {', '.join(missing)}, not installed here: pip install -e '.[serve]'")
    with _listening(host, port) as listener:  # before the slow imports, so that a taken port is told at once
        import uvicorn

        from twofold.cli.progress import quiet_libraries
        from twofold.environment import device_type
        from twofold.models.load import load_model

        quiet_libraries()
        loaded = load_model(model)
        name = _name(model)
        app = application(loaded.to(device_type()), serving_tokenizer(Path(loaded.name_or_path)), name)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        _end_together(loaded, server)
        typer.echo(f"{name} ({loaded.config.described}) answers at {_address(listener)}/v1 until Ctrl-C")
        with contextlib.suppress(KeyboardInterrupt):  # how a server is meant to end
            server.run(sockets=[listener])


def application(model: TwofoldForCausalLM, tokenizer: PreTrainedTokenizerFast, name: str) -> FastAPI:
    """Transformers' server (an ASGI application) for one model, which clients know as `name`.

    `tokenizer`: as `serving_tokenizer` gives it. Generation is the model's `generate()`, one request after the other,
    so it has the row cache. A ValueError becomes an answer with status 400. Changes the model's generation defaults.
    """
    from fastapi.responses import JSONResponse
    from transformers.cli.serving.chat_completion import ChatCompletionHandler
    from transformers.cli.serving.completion import CompletionHandler
    from transformers.cli.serving.response import ResponseHandler
    from transformers.cli.serving.server import build_server
    from transformers.cli.serving.systemone import SystemOneHandler
    from transformers.cli.serving.transcription import TranscriptionHandler
    from transformers.cli.serving.utils import GenerationState

    # The server passes a temperature on, and never says that it means drawing.
    model.generation_config.update(do_sample=True, temperature=TEMPERATURE, top_k=0)
    manager, state = OneModel(model, tokenizer, name), GenerationState()
    app = build_server(
        manager,
        ChatCompletionHandler(manager, state),
        completion_handler=CompletionHandler(manager, state),
        response_handler=ResponseHandler(manager, state),
        transcription_handler=TranscriptionHandler(manager, state),
        systemone_handler=SystemOneHandler(manager, state),
        generation_state=state,
    )

    def answer(error: Exception, status: int, kind: str) -> JSONResponse:
        said = str(error).encode("ascii", "backslashreplace").decode()  # half a surrogate pair cannot be sent back
        return JSONResponse({"error": {"message": said, "type": kind}}, status_code=status)

    for fault in (ValueError, TypeError, KeyError):  # the last two are what transformers makes of a malformed request
        app.add_exception_handler(fault, lambda _, error: answer(error, 400, "invalid_request_error"))
    app.add_exception_handler(EndedError, lambda _, error: answer(error, 503, "server_error"))
    return app


def serving_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that was saved with a model, made to begin a text as training did: with the end token.

    Without a chat template, which models of plain text have no use for, a conversation is the text of its messages,
    a newline between two. Raises ValueError where the folder holds no such tokenizer, and later for tools.
    """
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    from twofold.data.pretrained_tokenizer import PretrainedTokenizer

    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{folder} holds no tokenizer that can be served (no tokenizer.json): train the model again")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: the tokenizer is damaged ({error}); train the model again") from error
    end = PretrainedTokenizer(str(folder), tokenizer).end
    end_text = tokenizer.convert_ids_to_tokens(end)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=[end_text, "$A"], special_tokens=[(end_text, end)]
    )
    if tokenizer.chat_template is None:

        def as_text(messages: list[dict[str, Any]], tools: list[Any] | None = None, **_: Any) -> Any:
            if tools:
                raise ValueError("this model has no chat template, so it cannot be told of tools: leave them out")
            texts: list[str] = [m["content"] for m in messages if isinstance(m.get("content"), str)]
            if not texts or len(texts) < len(messages):
                raise ValueError("give one message or more, each with a text as its content")
            return tokenizer("\n".join(texts), return_tensors="pt")

        # A template in Jinja could not write the end token: what looks like it in a text is ordinary bytes.
        tokenizer.apply_chat_template = as_text
    return tokenizer


@dataclass(frozen=True)
class OneModel:
    """What transformers' server asks of its `ModelManager`, answered with one model that stays.

    Transformers' own manager finds a class by its name in transformers, where Twofold's are not, and loads from the
    Hub what a request names.
    """

    model: TwofoldForCausalLM
    tokenizer: PreTrainedTokenizerFast
    force_model: str

    def process_model_name(self, name: str) -> str:
        """The name itself: there are no revisions."""
        return name

    def load_model_and_processor(self, name: str, **_: Any) -> tuple[TwofoldForCausalLM, PreTrainedTokenizerFast]:
        """Model and tokenizer. Raises ValueError for another name."""
        if name != self.force_model:
            raise ValueError(f"this server has the model {self.force_model!r} only, not {name!r}")
        return self.model, self.tokenizer

    async def load_model_streaming(self, name: str, **_: Any) -> AsyncIterator[str]:
        """What `/load_model` says: the model is there already, or cannot be had."""
        event: dict[str, Any] = {"status": "ready", "model": name, "cached": True}
        try:
            self.load_model_and_processor(name)
        except ValueError as error:
            event = {"status": "error", "model": name, "message": str(error)}
        yield f"data: {json.dumps(event)}\n\n"

    def get_model_modality(self, *_: Any, **__: Any) -> Any:
        """Text in, text out."""
        from transformers.cli.serving.utils import Modality

        return Modality.LLM

    def list_models(self) -> list[dict[str, Any]]:
        """What `/v1/models` says."""
        created = int(Path(self.model.name_or_path).stat().st_mtime)
        return [{"id": self.force_model, "object": "model", "created": created, "owned_by": "twofold"}]

    def shutdown(self) -> None:
        """Nothing: the model goes with the process."""


def _end_together(model: TwofoldForCausalLM, server: uvicorn.Server) -> None:
    """Let generation fail at its next token once the server is to end.

    Otherwise requests would hold the server up to their last token, or, cut off, still compute as the process exits.
    """

    def check(*_: Any, **__: Any) -> bool:
        if server.should_exit:
            raise EndedError("the server is ending")
        return False

    model.generate = partial(model.generate, stopping_criteria=[check])  # type: ignore[method-assign]


def _name(folder: Path) -> str:
    """The run's folder, by its last part: `runs/mine` and `runs/mine/model` are both `mine`."""
    from twofold.models.load import MODEL_FOLDER

    whole = folder.resolve()
    return whole.parent.name if whole.name == MODEL_FOLDER else whole.name


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises ValueError where the address is unknown, taken or not to be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # without Python's repetition of the address
        raise ValueError(
            f"cannot listen at {host}, port {port}: {reason}. Choose another with --host or --port; port 0 takes a "
            "free one"
        ) from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
