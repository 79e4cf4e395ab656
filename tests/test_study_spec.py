"""Study files: what is wrong is named with file, line and choices, and the built-in ones are what they promise."""

from dataclasses import fields

import pytest
import yaml

from twofold.models.architecture import Architecture
from twofold.models.presets import PRESETS
from twofold.study.data_spec import DataSpec
from twofold.study.load import builtin_studies, checked, load_study, parse_study
from twofold.study.sizes import ModelSpec
from twofold.study.spec import StudySpec
from twofold.training.settings import MACHINE_FIELDS, TrainingSettings
from twofold.variants.notation import parse

GOOD = """\
name: mine
# a comment, so that lines are not counted by keys
data:
  source: texts
  context: 37

model:
  layers: 3
  width: 24
variants:
  - QKV
  - K=V GQA-2
seeds: [0, 5]
tokens: 1_000
training:
  batch: 3
"""


def fault(text: str) -> str:
    with pytest.raises(ValueError, match=r"^f\.yaml") as raised:
        parse_study(text, "f.yaml")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def changed(line: str, *replacement: str) -> str:
    """`GOOD` with one whole line replaced."""
    assert GOOD.splitlines().count(line) == 1
    return GOOD.replace(f"{line}\n", "".join(f"{new}\n" for new in replacement))


def test_a_good_file_is_read():
    spec = parse_study(GOOD, "f.yaml")
    assert spec.variants == ("QKV", "K=V GQA-2")
    assert (spec.seeds, spec.tokens, spec.training.batch) == ((0, 5), 1000, 3)
    assert spec.data == DataSpec(source="texts", context=37)
    sizes = spec.model.architecture("K=V GQA-2")
    assert (sizes.layers, sizes.width, sizes.head_dim, sizes.mlp, sizes.vocab) == (3, 24, 6, 344, 257)


def test_notation_is_made_canonical():
    spec = parse_study(changed("  - QKV", "  - q-k=v mqa") + "baseline: k=v  Mqa\n", "f.yaml")
    assert spec.variants == (str(parse("Q-K=V MQA")), "K=V GQA-2")
    assert spec.baseline == spec.variants[0]


@pytest.mark.parametrize(
    ("line", "replacement", "message"),
    [
        ("tokens: 1_000", ["tokns: 1_000"], ":14: unknown key 'tokns': did you mean 'tokens'? The keys here are name,"),
        (
            "  context: 37",
            ["  contxt: 37"],
            ":5: unknown key 'data.contxt': did you mean 'context'? The keys here are ",
        ),
        ("  batch: 3", ["  batch: 3", "  optimizer: x"], ":17: unknown key 'training.optimizer': The keys here are b"),
        ("  width: 24", ["  variant: QKV"], ":9: unknown key 'model.variant': The keys here are preset, layers, width"),
        ("tokens: 1_000", [], ":1: the key 'tokens' is missing"),
        ("tokens: 1_000", ["tokens: 0"], ":14: tokens: Input should be greater than or equal to 1"),
        ("tokens: 1_000", ["tokens: many"], ":14: tokens: Input should be a valid integer"),
        ("tokens: 1_000", ["tokens: 1", "tokens: 2"], ":15: the key 'tokens' is given twice"),
        ("  width: 24", ["  width: 24", "  width: 32"], ":10: the key 'width' is given twice"),
        ("  source: texts", ["  held_out: 1.5"], ":4: data.held_out: Input should be less than 1"),
        ("  batch: 3", ["  learning_rate: .inf"], ":16: training.learning_rate: Input should be a finite number"),
        ("  - QKV", ["  - QKV", "  - K=W"], ":12: variants.1: unknown variant 'K=W': did you mean 'K=V'? A variant is"),
        ("  - K=V GQA-2", ["  - 3"], ":12: variants.1: Input should be a valid string"),
        ("  - K=V GQA-2", ["  - QKV MHA"], ":12: variants.1: QKV is named twice in variants"),
        ("  - K=V GQA-2", ["  - Q=K MQA"], ":12: variants.1: Q=K cannot be combined with MQA: "),
        ("  - K=V GQA-2", ["  - Q=K +"], ":12: variants.1: Q=K +: the + term is for non-causal models"),
        (
            "  - K=V GQA-2",
            ["  - K=V", "  - GQA-3"],
            ":13: variants.2: GQA-3: 4 query heads cannot be shared out evenly among 3 key/value heads; possible "
            "numbers are 1, 2, 4",
        ),
        (
            "seeds: [0, 5]",
            ["seeds: [0, 5]", "baseline: K=V"],
            ":14: baseline: 'K=V' is none of this study's variants: choose one of QKV, K=V GQA-2",
        ),
        ("seeds: [0, 5]", ["seeds: [0, 5, 0]"], ":13: seeds.2: 0 is named twice in seeds"),
        ("seeds: [0, 5]", ["seeds: [-1]"], ":13: seeds.0: Input should be greater than or equal to 0"),
        ("seeds: [0, 5]", ["seeds: 0"], ":13: seeds: write a list, such as [a, b]"),
        ("seeds: [0, 5]", ["seeds: []"], ":13: seeds: name at least one"),
        ("name: mine", ["name: ../mine"], ":1: name: use letters, digits, '.', '_' and '-' only"),
        ("  layers: 3", ["  layers: 0"], ":8: model.layers: layers must be at least 1, not 0"),
        ("  width: 24", ["  width: 26"], ":9: model.width: width 26 is not a multiple of 4 heads: give head_dim"),
        ("  layers: 3", ["  heads: 5"], ":9: model.width: width 24 is not a multiple of 5 heads: give head_dim"),
        ("  width: 24", ["  heads: 5"], ":9: model.heads: width 128 is not a multiple of 5 heads: give head_dim"),
        ("  layers: 3", ["  preset: 7B"], ":8: model.preset: unknown preset '7B': choose one of tiny, 300M, 1.2B"),
        ("  layers: 3", ["  block: new"], ":8: model.block: block 'new' is unknown: choose paper (LayerNorm, GELU"),
        ("  layers: 3", ["  rotary: 1"], ":8: model.rotary: Input should be a valid string"),
        ("  layers: 3", ["  head_dim: 7"], ":8: model.head_dim: rotary turns dims in pairs: head_dim must be even"),
        ("  batch: 3", [], ":15: training: give some of the keys batch, accumulation, learning_rate"),
    ],
)
def test_a_fault_names_its_line_and_the_choices(line, replacement, message):
    assert fault(changed(line, *replacement)).startswith(f"f.yaml{message}")


def test_text_longer_than_the_learned_positions_is_refused():
    learned = changed("  layers: 3", "  rotary: none", "  positions: 64")
    assert fault(learned) == (
        "f.yaml:7: model: 352 tokens in a row are asked for (data.context, or sample.prompt + sample.tokens), and the "
        "model has 64 learned positions: raise model.positions"
    )
    parse_study(learned.replace("64", "352"), "f.yaml")
    parse_study(changed("  layers: 3", "  positions: 1"), "f.yaml")  # rotary positions have no end


def test_any_size_that_does_not_fit_is_found_before_it_runs():
    for name, block in (("width", "paper"), ("mlp", "modern"), ("positions", "paper"), ("dropout", "modern")):
        with pytest.raises(ValueError, match=name):
            checked({"name": "x", "variants": ["QKV"], "tokens": 1, "model": {name: -1, "block": block}})


@pytest.mark.parametrize("text", ["", "# nothing\n", "QKV", "- a\n- b\n", "!!set {a, b}"])
def test_what_is_no_mapping_is_told_the_keys(text):
    assert fault(text) == f"f.yaml: a study is a mapping with {', '.join(StudySpec.model_fields)}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: mine\nvariants: [QKV\ntokens: 1\n", ":3: not YAML: expected ',' or ']', but got ':'"),
        ("name: a\n\ttokens: 1\n", ":2: not YAML: found character '\\t' that cannot start any token"),
        ("name: a\n---\nname: b\n", ":2: not YAML: but found another document"),
        ("name: !!python/name:os.system x\n", ":1: not YAML: could not determine a constructor for the tag"),
        ("name: \x00\n", ": not YAML: unacceptable character #x0000"),
    ],
)
def test_what_is_no_yaml_names_the_line(text, message):
    assert fault(text).startswith(f"f.yaml{message}")


def test_files_are_named_as_they_were_given(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(changed("tokens: 1_000", "tokens: x"))
    with pytest.raises(ValueError, match=rf"^{path}:14: tokens: "):
        load_study(str(path))
    path.write_bytes(b"name: \xe9t\xe9\n")
    with pytest.raises(ValueError, match=rf"^{path}: not a text file \(byte 6 is not UTF-8\)$"):
        load_study(str(path))


@pytest.mark.parametrize(("name", "hint"), [("demmo", "did you mean 'demo'? "), ("no/such.yaml", "")])
def test_an_unknown_name_is_told_the_built_in_studies(name, hint):
    with pytest.raises(ValueError, match="give a YAML file") as raised:
        load_study(name)
    names = ", ".join(builtin_studies())
    assert str(raised.value) == f"no study {name!r}: {hint}give a YAML file, or one of the built-in studies {names}"


CONVERTED = {"latent_norm", "rotary_pairs", "layer_variants", "layer_latents", "position_offset"}
"""What models have that were made from others, and nobody trains from nothing."""


def test_the_model_part_is_the_architecture():
    given = {f.name for f in fields(Architecture)} - {"variant", "vocab"} - CONVERTED
    assert set(ModelSpec.model_fields) == given | {"preset"}
    for preset, sizes in PRESETS.items():
        made = ModelSpec(preset=preset).architecture("K=V")
        assert made == Architecture(**{**sizes, "vocab": 257, "variant": "K=V"})


def test_every_setting_but_names_variants_and_seeds_is_compared():
    spec = parse_study(GOOD, "f.yaml")
    left_out = {"name", "description", "variants", "baseline", "seeds"}
    assert set(spec.comparable()) == set(StudySpec.model_fields) - left_out - {"sweep", "axes"}
    assert set(spec.comparable()["training"]) == set(TrainingSettings.model_fields) - set(MACHINE_FIELDS)


@pytest.mark.parametrize("name", builtin_studies())
def test_built_in_studies_are_named_after_their_file_and_described(name):
    spec = load_study(name)
    assert spec.name == name
    assert spec.description.rstrip().endswith((".", "?"))
    source = yaml.safe_load(builtin_studies()[name])["data"].get("source", "python-stdlib")
    assert source.startswith(("python-", "dataset:"))  # what every machine has, or can get


def test_demo_compares_the_eight_variants():
    eight = ("QKV", "K=V", "Q=K", "Q=K=V", "GQA-2", "MQA", "K=V GQA-2", "K=V MQA")
    demo = load_study("demo")
    assert demo.variants == tuple(str(parse(variant)) for variant in eight)
    assert {demo.model.architecture(variant).rotary for variant in demo.variants} == {"full"}
