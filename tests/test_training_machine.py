"""How a machine trains: precision, checkpointed activations, compilation, loggers. What cannot be done is refused."""

import math
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError
from safetensors import safe_open
from transformers import TrainerControl, TrainerState, TrainingArguments

from tiny_study import BATCH, CONTEXT, STEPS, content, documents, tiny_model
from twofold.data.packing import Windows
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise
from twofold.study.load import checked
from twofold.training import checkpoints, requirements
from twofold.training.metrics import DivergedError, MetricsCallback, read_metrics
from twofold.training.run import TENSORBOARD_FOLDER, train
from twofold.training.settings import MACHINE_FIELDS, TrainingSettings

FIELDS = {"block": "paper", "dropout": 0.2}
WINDOWS = Windows(tokenise(documents(), BYTES), CONTEXT)


class KilledError(Exception):
    pass


def run(folder, *, stop_at=None, model=None, steps=STEPS, **settings):
    """A trained model and its steps, less their times; killed at `stop_at`."""
    model = tiny_model("K=V GQA-2", seed=3, **FIELDS) if model is None else model

    def progress(step):
        if step.step == stop_at:
            raise KilledError

    taken = train(
        model,
        WINDOWS,
        TrainingSettings(batch=BATCH, checkpoints=steps // 2, **settings),
        steps=steps,
        length=CONTEXT,
        seed=3,
        folder=folder,
        progress=progress,
        resume=True,
        say=lambda message: None,
    )
    return model, [step._replace(seconds=0) for step in taken]


def killed(folder, stop_at, **settings):
    with pytest.raises(KilledError):
        run(folder, stop_at=stop_at, **settings)


def assert_equal(one, other):
    assert one[1] == other[1]
    for name, tensor in one[0].state_dict().items():
        assert torch.equal(tensor, other[0].state_dict()[name]), name


def assert_close(one, other, tolerance=2e-5):
    assert [step.loss for step in other[1]] == pytest.approx([step.loss for step in one[1]], rel=1e-5)
    assert other[0].state_dict().keys() == one[0].state_dict().keys()
    for name, tensor in one[0].state_dict().items():
        torch.testing.assert_close(other[0].state_dict()[name], tensor, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def in_bfloat16(tmp_path_factory):
    return run(tmp_path_factory.mktemp("bfloat16"), precision="bfloat16")


def test_activations_computed_again_change_no_bit(tmp_path, plain):
    model, _ = checkpointed = run(tmp_path, gradient_checkpointing=True)
    assert_equal(plain, checkpointed)
    assert not model.is_activation_checkpointing


def test_a_run_goes_on_with_activations_computed_again_and_without(tmp_path, plain):
    killed(tmp_path, 5, gradient_checkpointing=True)
    killed(tmp_path, 9)
    assert_equal(plain, run(tmp_path, gradient_checkpointing=True))


def test_bfloat16_computes_otherwise_and_keeps_weights_in_float32(plain, in_bfloat16):
    model, steps = in_bfloat16
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in plain[1]], rel=1e-2)
    assert all(step.loss != same.loss for step, same in zip(steps, plain[1], strict=True))


def test_after_training_in_bfloat16_the_model_computes_in_float32(in_bfloat16):
    model, _ = in_bfloat16
    fresh = tiny_model("K=V GQA-2", **FIELDS)
    fresh.load_state_dict(model.state_dict())
    ids = WINDOWS[0]["input_ids"][None]
    with torch.no_grad():
        assert torch.equal(model.eval()(ids).logits, fresh.eval()(ids).logits)
    assert not {"forward", "_original_forward"} & model.__dict__.keys()


def test_a_model_may_be_trained_again_in_bfloat16(tmp_path, in_bfloat16):
    model = tiny_model("K=V GQA-2", seed=3, **FIELDS)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in ("a", "b"):
        model.load_state_dict(start)
        assert_equal(in_bfloat16, run(tmp_path / name, model=model, precision="bfloat16"))


def test_bfloat16_goes_on_bit_by_bit(tmp_path, in_bfloat16):
    killed(tmp_path, 5, precision="bfloat16")
    killed(tmp_path, 9, precision="bfloat16")
    assert_equal(in_bfloat16, run(tmp_path, precision="bfloat16"))


@pytest.fixture(scope="module")
def compiled_and_not(tmp_path_factory):
    """Runs that went on twice, compiled now and then; the folders hold their last checkpoints."""
    folders = [tmp_path_factory.mktemp(name) for name in ("compiled_last", "compiled_between")]
    made = []
    for folder, compiled in zip(folders, (True, False), strict=True):
        killed(folder, 5, compile=compiled)
        killed(folder, 9, compile=not compiled)
        made.append((folder, run(folder, compile=compiled)))
    return made


# torch's compiler asks every tensor for its gradient, and for one that has none it warns itself.
@pytest.mark.system  # compiling takes half a minute
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_run_goes_on_compiled_and_not(compiled_and_not, plain):
    for _, made in compiled_and_not:
        assert_close(plain, made)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.system  # compiling takes half a minute
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_no_name_tells_of_the_compiler(compiled_and_not, plain, tmp_path):
    for folder, (model, _) in compiled_and_not:
        model.save_pretrained(tmp_path)
        files = [*folder.glob(f"{checkpoints.FOLDER}/step-*/*.safetensors"), tmp_path / "model.safetensors"]
        assert len(files) == 1 + checkpoints.KEPT
        for file in files:
            with safe_open(file, "pt") as saved:
                assert set(saved.keys()) == set(plain[0].state_dict()) - {"lm_head.weight"}
        assert all(block._compiled_call_impl is None for block in model.model.layers)


def test_reports_go_where_they_are_asked_to(tmp_path, plain):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reported = run(tmp_path, report_to=("tensorboard",))
    assert_equal(plain, reported)
    events = EventAccumulator(str(tmp_path / TENSORBOARD_FOLDER)).Reload()
    told = {event.step: event.value for event in events.Scalars("train/loss")}
    assert told == {step.step: pytest.approx(step.loss, rel=1e-6) for step in reported[1]}


def test_nothing_is_reported_unless_asked(tmp_path):
    run(tmp_path, steps=2)
    assert {place.name for place in tmp_path.iterdir()} == {"metrics.jsonl", checkpoints.FOLDER}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "float16"}, "training.precision is float16, which needs a GPU, and this is a CPU: use bfloat16"),
        ({"fsdp": True}, "training.fsdp spreads a model over processes, and there is one"),
        ({"report_to": ("tensorbored",)}, "training.report_to: no 'tensorbored'; there are .*tensorboard"),
        ({"report_to": ("neptune",)}, "training.report_to: neptune is not installed here"),
    ],
)
def test_what_this_machine_cannot_do_is_refused(tmp_path, monkeypatch, settings, message):
    monkeypatch.setattr(requirements, "device_type", lambda: "cpu")
    monkeypatch.setattr(requirements, "get_available_reporting_integrations", lambda: ["tensorboard"])
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "new", **settings)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("device", "settings", "message"),
    [
        ("cuda", {"precision": "bfloat16"}, "this cuda device does not compute in it: use float16 or float32"),
        ("cuda", {"precision": "float16", "fsdp": True}, "fsdp does not go with float16"),
        ("cuda", {"precision": "float16"}, ""),
        ("cuda", {"compile": True}, "needs Triton on a GPU"),
        ("cpu", {"compile": True}, "needs a C.. compiler on a CPU: install"),
    ],
)
def test_refusals_depend_on_the_device(monkeypatch, device, settings, message):
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none():
        raise InvalidCxxCompiler

    monkeypatch.setattr(requirements, "device_type", lambda: device)
    monkeypatch.setattr(requirements, "is_torch_bf16_gpu_available", lambda: False)
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    monkeypatch.setenv("WORLD_SIZE", "2" if "fsdp" in settings else "1")
    if not message:
        requirements.check(TrainingSettings(**settings))
        return
    with pytest.raises(ValueError, match=message):
        requirements.check(TrainingSettings(**settings))


@pytest.mark.parametrize("count", [3, 5])
def test_a_batch_that_processes_cannot_share_is_refused(monkeypatch, count):
    monkeypatch.setenv("WORLD_SIZE", str(count))
    with pytest.raises(ValueError, match=f"16 windows over all processes, and there are {count} processes: make it a"):
        requirements.check(TrainingSettings())
    monkeypatch.setenv("WORLD_SIZE", "4")
    requirements.check(TrainingSettings())


@pytest.mark.parametrize(
    ("name", "value", "setting"),
    [
        ("ACCELERATE_MIXED_PRECISION", "bf16", "precision"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "compile"),
        ("ACCELERATE_USE_FSDP", "true", "fsdp"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "fsdp"),
    ],
)
def test_what_a_launcher_asks_beside_the_settings_is_refused(monkeypatch, name, value, setting):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} is '{value}': .* here training.{setting}"):
        requirements.check(TrainingSettings())
    monkeypatch.setenv(name, "NO" if value.isupper() or value == "bf16" else "false")
    requirements.check(TrainingSettings())


@pytest.mark.parametrize("precision", ["float64", "bf16", 16, None])
def test_precisions_have_names(precision):
    with pytest.raises(ValidationError):
        TrainingSettings(precision=precision)


def test_studies_compare_what_moves_results_and_not_how_a_machine_does_it(texts):
    def comparable(**training):
        return checked(content(texts, training={"batch": BATCH, **training})).comparable()

    switches = dict.fromkeys(("gradient_checkpointing", "compile", "fsdp"), True)
    changed = {**switches, "report_to": ["tensorboard"], "gradients_every": 3}
    assert set(changed) == set(MACHINE_FIELDS)
    assert comparable(**changed) == comparable()
    assert comparable(precision="bfloat16") != comparable()


def logged(tmp_path, norms, skips):
    """Steps of which the Trainer tells these norms."""
    metrics = MetricsCallback(tmp_path / "metrics.jsonl", 100, None, [], skips=skips)
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True)
    metrics.on_train_begin(arguments, TrainerState(), TrainerControl())
    try:
        for number, norm in enumerate(norms, start=1):
            state = SimpleNamespace(global_step=number, max_steps=len(norms))
            metrics.on_log(arguments, state, TrainerControl(), {"loss": 2.0, "learning_rate": 1e-3, "grad_norm": norm})
    finally:
        metrics.close()
    return read_metrics(tmp_path)


def test_a_step_that_the_loss_scale_leaves_out_is_no_divergence(tmp_path):
    norms = [math.inf, math.nan, 1.5]
    assert [step.gradient_norm for step in logged(tmp_path, norms, skips=True)] == [None, None, 1.5]
    with pytest.raises(DivergedError, match="the gradient's norm is inf at step 1"):
        logged(tmp_path, norms, skips=False)


def test_one_process_uses_one_device(monkeypatch, tmp_path):
    from twofold.training.run import _arguments

    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 8))
    arguments = _arguments(TrainingSettings(), 5, 0, tmp_path, "name")
    assert arguments._n_gpu == 1
