"""`twofold serve`: OpenAI clients get what `generate` makes, from the row cache, and mistakes are told."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import openai
import pytest
import torch
from starlette.testclient import TestClient
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from command_line import run
from small_models import formula_bytes, small_model
from twofold.cache.row_cache import RowCache
from twofold.cli.serve import application, serving_tokenizer
from twofold.data.byte_tokens import END, VOCABULARY, byte_tokenizer, decode_text
from twofold.evaluation.generation import generate
from twofold.models.load import load_model

NEW = 23
PROMPT = "def <|end|>("
"""What looks like the end token is ordinary bytes in it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run's folder with a model that prefers printable ASCII, so that texts compare as texts."""
    run_folder = tmp_path_factory.mktemp("runs") / "K=V_MQA_seed0"
    model = small_model("K=V MQA", vocab_size=VOCABULARY, eos_token_id=END, pad_token_id=END)
    with torch.no_grad():
        for rows in (slice(0, 32), slice(127, None)):
            model.lm_head.weight[rows] = 0
    model.save_pretrained(run_folder / "model")
    byte_tokenizer().save_pretrained(run_folder / "model")
    return run_folder


@pytest.fixture(scope="module")
def client(folder):
    """OpenAI's client of a server in this process."""
    app = application(load_model(folder), serving_tokenizer(folder / "model"), folder.name)
    with TestClient(app) as http, connected("http://testserver/v1", http_client=http) as made:
        yield made


def connected(address, **others):
    return openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=60, **others)


@pytest.fixture
def name(folder):
    return folder.name


def expected(folder, text=PROMPT, temperature=0.0, seed=0):
    """What the library generates from a text."""
    ids = [END, *text.encode()]
    made = generate(load_model(folder), ids, new_tokens=NEW, temperature=temperature, seed=seed).token_ids
    assert len(made) == NEW
    return decode_text(made)


def says(*texts):
    roles = ("system", "user", "assistant")
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def test_the_one_model_is_listed(client, name):
    assert [model.id for model in client.models.list().data] == [name]


def test_a_chat_completion_is_what_generate_makes(client, folder, name):
    asked = {"model": name, "messages": says(PROMPT), "temperature": 0, "max_tokens": NEW}
    whole, again = (client.chat.completions.create(**asked) for _ in range(2))
    assert whole.choices[0].message.content == again.choices[0].message.content == expected(folder)
    assert whole.choices[0].finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (1 + len(PROMPT), NEW)
    parts = [part.choices[0].delta.content or "" for part in client.chat.completions.create(**asked, stream=True)]
    assert "".join(parts) == expected(folder)
    assert sum(map(bool, parts)) > 1


def test_a_completion_is_the_same(client, folder, name):
    asked = {"model": name, "prompt": PROMPT, "temperature": 0, "max_tokens": NEW}
    assert client.completions.create(**asked).choices[0].text == expected(folder)
    assert "".join(part.choices[0].text for part in client.completions.create(**asked, stream=True)) == expected(folder)
    response = client.responses.create(model=name, input=PROMPT, temperature=0, max_output_tokens=NEW, stream=False)
    assert response.output_text == expected(folder)


def test_messages_are_joined_by_newlines(client, folder, name):
    asked = {"model": name, "messages": says("one", "two", "naïve "), "temperature": 0, "max_tokens": NEW}
    assert client.chat.completions.create(**asked).choices[0].message.content == expected(folder, "one\ntwo\nnaïve ")


def test_an_empty_prompt_starts_a_new_document(client, folder, name):
    made = client.completions.create(model=name, prompt="", temperature=0, max_tokens=NEW)
    assert made.choices[0].text == expected(folder, "")


def test_a_temperature_draws_and_the_seed_decides(client, folder, name):
    def drawn(**wish):
        asked = {"model": name, "prompt": PROMPT, "max_tokens": NEW, **wish}
        return client.completions.create(**asked).choices[0].text

    assert drawn(seed=1) == drawn(seed=1, temperature=0.8) == expected(folder, temperature=0.8, seed=1)
    assert drawn(seed=2) == expected(folder, temperature=0.8, seed=2) != drawn(seed=1)
    assert drawn(seed=1, temperature=1.7) == expected(folder, temperature=1.7, seed=1) != drawn(seed=1)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"temperature": -1}, "has to be a strictly positive float"),
        ({"model": "gpt2"}, "Error code: 400"),
        ({"max_tokens": 0}, "must be greater than 0"),
        ({"messages": []}, "give one message or more"),
        ({"messages": "hi"}, "Error code: 400"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
            "this model has no chat template, so it cannot be told of tools",
        ),
    ],
)
def test_a_wrong_request_is_answered_with_400(client, name, wish, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(**{"model": name, "messages": says("x"), "max_tokens": 3, **wish})
    assert client.completions.create(model=name, prompt="x", max_tokens=3).usage.completion_tokens == 3


def test_no_other_model_can_be_loaded_and_none_unloaded(client, name):
    def post(path, **body):
        answer = client.post(f"http://testserver{path}", body=body, cast_to=str)
        return json.loads(answer.removeprefix("data: "))

    assert post("/load_model", model="gpt2")["message"] == f"this server has the model '{name}' only, not 'gpt2'"
    assert post("/load_model", model=name)["status"] == "ready"
    assert post("/reset") == {"status": "ok"}
    assert client.completions.create(model=name, prompt="x", max_tokens=3).usage.completion_tokens == 3


@pytest.mark.slow
def test_the_command_serves_until_ctrl_c_and_ends_quietly_while_it_generates(folder, name):
    command = [sys.executable, "-m", "twofold.cli.main", "serve", str(folder / "model"), "--port", "0"]
    # Whatever was fetched would fail.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_ENDPOINT": "http://127.0.0.1:1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            line = process.stdout.readline()
            found = re.fullmatch(
                rf"{re.escape(name)} \(K=V MQA\) answers at (http://127.0.0.1:\d+/v1) until Ctrl-C\n", line
            )
            assert found, (line, process.communicate())
            with connected(found[1]) as client:
                assert [model.id for model in client.models.list().data] == [name]
                asked = {"model": name, "messages": says(PROMPT), "temperature": 0, "max_tokens": NEW}
                assert client.chat.completions.create(**asked).choices[0].message.content == expected(folder)
                with client.chat.completions.create(**{**asked, "max_tokens": 10**6}, stream=True) as parts:
                    begun = [next(parts).choices[0].delta.content or "" for _ in range(3)]
                    process.send_signal(signal.SIGINT)
                    with pytest.raises(openai.APIError):
                        list(parts)
                assert "".join(begun)
                assert expected(folder).startswith("".join(begun))
            assert process.communicate(timeout=30) == ("", "")
            assert process.returncode == 0
        finally:
            process.kill()


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_tokens_come_from_the_row_cache(folder, endpoint):
    model, made = load_model(folder), []
    plain = model.generate

    def watched(**wishes):
        made.append(plain(**wishes, return_dict_in_generate=True))
        return made[-1].sequences

    model.generate = watched
    body = {"temperature": 0, "max_tokens": NEW, "prompt": PROMPT, "messages": says(PROMPT)}
    body.pop("prompt" if "chat" in endpoint else "messages")
    with TestClient(application(model, serving_tokenizer(folder / "model"), "tiny")) as client:
        (choice,) = client.post(endpoint, json=body).json()["choices"]
    assert expected(folder) in (choice.get("text"), choice.get("message", {}).get("content"))
    (cache,) = (one.cache for one in made)
    assert type(cache) is RowCache
    assert cache.bytes_used == formula_bytes(model, tokens=1 + len(PROMPT) + NEW - 1, batch=1)


def words_tokenizer(folder, **fields):
    """A tokenizer that is not of bytes, and would begin a text with a token of its own."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(("?", "<s>", "</s>", "a", "b", "u:"))}, "?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=words, **fields).save_pretrained(folder)
    return folder


def test_any_tokenizer_begins_a_text_as_training_did(tmp_path):
    tokenizer = serving_tokenizer(words_tokenizer(tmp_path, eos_token="</s>"))
    assert tokenizer("a b").input_ids == [2, 3, 4]
    assert tokenizer.apply_chat_template(says("a", "b"), add_generation_prompt=True).input_ids.tolist() == [[2, 3, 4]]


def test_a_chat_template_of_its_own_is_kept(tmp_path):
    template = "{% for message in messages %}u: {{ message.content }} {% endfor %}"
    tokenizer = serving_tokenizer(words_tokenizer(tmp_path, eos_token="</s>", chat_template=template))
    assert tokenizer.apply_chat_template(says("a", "b")).input_ids == [5, 3, 5, 4]


def test_a_folder_without_its_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer that can be served"):
        serving_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="has no end-of-text token"):
        serving_tokenizer(words_tokenizer(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=f"{tmp_path}: the tokenizer is damaged"):
        serving_tokenizer(tmp_path)


def refused(capsys, *words):
    """The one line on standard error, less the verb."""
    outcome = run(capsys, "serve", *map(str, words))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix("twofold serve: ").rstrip("\n")


def test_what_cannot_be_served_is_refused(capsys, folder, tmp_path, monkeypatch):
    assert refused(capsys, tmp_path, "--port", 0).startswith(f"{tmp_path} holds no model (no config.json): give a ")
    assert refused(capsys, tmp_path / "no", "--port", 0).startswith(f"{tmp_path}/no is not a folder: give a folder")
    assert refused(capsys, folder, "--port", 65536).startswith("invalid value for '--port'")
    assert refused(capsys, folder, "--host", "no.invalid").startswith("cannot listen at no.invalid, port 8000: ")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refused(capsys, folder, "--port", port) == (
            f"cannot listen at 127.0.0.1, port {port}: Address already in use. Choose another with --host or --port; "
            "port 0 takes a free one"
        )
    monkeypatch.setattr("twofold.cli.serve.find_spec", lambda name: None if name == "uvicorn" else object())
    assert refused(capsys, folder) == "serving needs uvicorn, not installed here: pip install -e '.[serve]'"


def test_help_has_examples_that_fit_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(capsys, "serve", "--help")
    assert shown.code == 0
    assert "\n twofold serve" in shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= 80
