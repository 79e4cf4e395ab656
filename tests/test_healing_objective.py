"""What is minimised: nothing where student and teacher are alike, and the same as by hand where they are not."""

import pytest
import torch
import torch.nn.functional as F

from every_variant import every_model
from small_healing import original, student, teacher
from twofold.data.byte_tokens import VOCABULARY
from twofold.healing.objective import Distillation, cross_entropy, layer_error

STUDENTS = (
    "GQA-2 MLA on_read, partial, rotary_dims 4, latent_dims 16, latent_norm False",
    "MLA, rotary_dims 8, latent_dims 24",
    "K=V MQA kept, partial, rotary_dims 4",
    "K=V on_read, layer_variants ['K=V on_read', 'QKV']",
)


@pytest.fixture
def inputs():
    ids = torch.randint(VOCABULARY, (3, 18), generator=torch.Generator().manual_seed(5))
    return {"input_ids": ids[:, :-1], "shift_labels": ids[:, 1:]}


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_a_student_that_is_its_teacher_has_nothing_to_learn(inputs):
    model = teacher().double()  # in float32 passes without gradients add up in another order
    loss = Distillation(teacher().double(), layer_loss=0.7)(model, inputs)
    loss.backward()
    assert loss.item() == 0.0
    assert not any(gradient.any() for gradient in gradients(model).values())


@pytest.mark.parametrize("weights", [{}, {"cross_entropy": 0.3}, {"layer_loss": 0.5, "temperature": 2.0}])
def test_it_is_the_loss_and_the_gradient_of_whole_logits(inputs, weights):
    model, twin, taught_by = student().double(), student().double(), teacher().double()
    Distillation(taught_by, **weights)(model, inputs).backward()
    temperature = weights.get("temperature", 1.0)
    made, taught = (each(inputs["input_ids"], output_hidden_states=True) for each in (twin, taught_by))
    log_p, log_q = ((each.logits / temperature).log_softmax(-1) for each in (taught, made))
    loss = temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    loss += weights.get("cross_entropy", 0.0) * F.cross_entropy(made.logits.mT, inputs["shift_labels"])
    pairs = list(zip(made.hidden_states, taught.hidden_states, strict=True))[1:]
    errors = [((one - other).norm(dim=-1) / other.norm(dim=-1)).square().mean() for one, other in pairs]
    (loss + weights.get("layer_loss", 0.0) * sum(errors) / len(errors)).backward()
    torch.testing.assert_close(gradients(model), gradients(twin), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", STUDENTS)
def test_students_of_every_kind_learn_in_all_of_their_attention(inputs, name):
    """Also where layers differ, and where all of a key is made from a latent when it is read."""
    model = every_model(name, vocab_size=VOCABULARY).float()
    before = Distillation(teacher())(model, inputs)
    before.backward()
    learnt = {name: gradient for name, gradient in gradients(model).items() if ".attention." in name}
    assert all(gradient.any() for gradient in learnt.values())
    with torch.no_grad():
        for name, gradient in learnt.items():
            model.get_parameter(name).sub_(1e-3 * gradient / gradient.norm())
    assert Distillation(teacher())(model, inputs) < before


def test_hidden_states_are_those_of_the_layers(inputs):
    """One for the embeddings, and one for each layer: the last is what the head reads."""
    made = teacher()(inputs["input_ids"], output_hidden_states=True)
    assert len(made.hidden_states) == 1 + teacher().config.num_hidden_layers
    torch.testing.assert_close(teacher().lm_head(made.hidden_states[-1]), made.logits, rtol=0, atol=1e-5)


def test_a_teacher_of_another_family_teaches_the_same(inputs):
    taught = [Distillation(one, layer_loss=0.5)(student(), inputs) for one in (teacher(), original())]
    torch.testing.assert_close(*taught, rtol=1e-4, atol=1e-6)


def test_the_teacher_is_left_alone(inputs):
    taught_by = teacher().train()
    before = {name: tensor.clone() for name, tensor in taught_by.state_dict().items()}
    Distillation(taught_by)(student(), inputs).backward()
    assert all(parameter.grad is None for parameter in taught_by.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in taught_by.state_dict().items())
    assert not taught_by.training


@pytest.mark.parametrize("model", [teacher, original])
def test_the_controls_loss_is_the_models_own(inputs, model):
    made = cross_entropy(model(), inputs)
    logits_BTV = model()(inputs["input_ids"]).logits
    torch.testing.assert_close(made, F.cross_entropy(logits_BTV.mT, inputs["shift_labels"]), rtol=1e-5, atol=1e-6)


def test_layers_are_compared_one_by_one():
    states = [torch.ones(1, 2, 3)] * 4
    assert float(layer_error([states[0], 2 * states[0]], states[:2])) == 1.0
