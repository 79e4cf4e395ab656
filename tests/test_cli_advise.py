"""`twofold advise` and `plan --device`: tables say what JSON says, assumptions are printed, mistakes are one line."""

import json

import pytest

from command_line import run
from published_configurations import DEEPSEEK_V2, GEMMA_4_31B, LLAMA_3_8B
from small_models import small_config
from synthetic_records import synthetic_record, synthetic_results
from twofold.study.results import write_results
from twofold.study.scenarios import scenarios

LEVELS = {"QKV": (2.0, 4096), "K=V": (2.03, 2048), "MQA": (2.3, 1024)}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def study(here):
    records = [
        synthetic_record(variant, level + seed / 1000, seed=seed, bytes_per_token=size)
        for variant, (level, size) in LEVELS.items()
        for seed in range(3)
    ]
    write_results(synthetic_results(records), here / "runs" / "mine")
    return here / "runs"


def printed(capsys, *arguments):
    outcome = run(capsys, *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    return " ".join(outcome.out.split())


def as_json(capsys, *arguments):
    outcome = run(capsys, *arguments, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_the_table_says_what_the_json_says(capsys, study):
    asked = ["advise", "--preset", "tiny", "--memory", "4MiB", "--batch", "2", "--quality", "5%", "--device", "L4"]
    found, words = as_json(capsys, *asked), printed(capsys, *asked)
    assert [entry["rank"] for entry in found["ranked"]] == list(range(1, len(found["ranked"]) + 1))
    assert found["headline"] in words
    for note in found["notes"]:
        assert " ".join(note.split()) in words
    for entry in found["ranked"]:
        fits = "yes" if entry["fits"] else "no"
        sizes = f"{entry['weight_bytes'] / 2**20:,.2f} {entry['cache_bytes'] / 2**20:,.2f} {fits}"
        assert f"{entry['rank']} {entry['variant']} {sizes}" in words
        for line in (*entry["reasons"], *entry["warnings"]):
            assert " ".join(line.split()) in words
        if entry["interval"]:
            assert (
                f"{entry['percent']:+.2f} % [{entry['interval'][0]:+.2f}, {entry['interval'][1]:+.2f}] measured"
                in words
            )


def test_the_runs_of_the_working_directory_are_read_and_named(capsys, study):
    found = as_json(capsys, "advise", "--preset", "tiny", "--quality", "5 %")
    assert found["notes"][0] == "Measured: records of runs/mine/results.json."
    assert found["ask"]["quality"] == 5
    assert {e["variant"] for e in found["ranked"] if e["source"] == "measured"} == {"K=V", "MQA"}
    assert found["ranked"][0]["variant"] == "K=V"
    given = as_json(capsys, "advise", "--preset", "tiny", "--records", str(study / "mine" / "results.json"))
    assert given["ranked"][0]["source"] in ("baseline", "measured")


def test_without_records_it_says_so_and_shows_the_published_with_their_weaknesses(capsys, here):
    words = printed(capsys, "advise", "--preset", "300M", "--quality", "2%")
    assert "Nothing was measured" in words
    assert "published, not measured here: perplexity 5.27 against 5.11, +1.89 % of the loss, no interval" in words
    for weakness in ("one seed", "padding is scored", "none are matched", "lie at chance"):
        assert weakness in words
    assert "warning: its 300M K=V GQA-4 was released with 8 key/value heads" in words
    assert "met published" not in words


@pytest.mark.parametrize("name", list(scenarios()))
def test_every_scenario_prints_all_its_assumptions(capsys, here, name):
    one = scenarios()[name]
    words = printed(capsys, "advise", "--scenario", name)
    for assumed in (
        f"scenario {name}: {one.about}",
        f"sequences at once {one.batch}, tokens in each {one.context:,}",
        f"weights and cache in {one.dtype}, {one.memory_mib:,}.00 MiB for both",
        f"at most {one.quality:g} % of QKV's lost",
        f"assumed device, {one.device}: ",
        "GB/s (10⁹ bytes)",
        "the whole roof is reached",
        "rotary positions to 32,768",
        "Intervals hold for the model, the text and the tokens measured",
    ):
        assert assumed in words
    assert "yes" in words


def test_options_change_a_scenario(capsys, here):
    changed = ["--context", "100", "--batch", "7", "--memory", "3GB", "--quality", "1", "--dtype", "float32"]
    found = as_json(capsys, "advise", "--scenario", "iot", *changed, "--preset", "tiny", "--device", "H200")
    ask = found["ask"]
    assert (ask["context"], ask["batch"], ask["memory_bytes"], ask["quality"]) == (100, 7, 3 * 10**9, 1)
    assert (ask["dtype"], found["model"]["layers"], found["scenario"]) == ("float32", 4, "iot")
    assert {entry["device"]["device"] for entry in found["ranked"]} == {"H200"}


def test_a_device_s_memory_is_the_budget_where_none_is_given(capsys, here):
    assert as_json(capsys, "advise", "--device", "L4")["ask"]["memory_bytes"] == 24 * 10**9
    assert as_json(capsys, "advise")["ask"]["memory_bytes"] is None
    assert as_json(capsys, "advise")["ranked"][0]["fits"] is None


def test_a_trained_model_of_ours_brings_its_sizes_and_says_what_is_fixed(capsys, here):
    small_config("K=V MQA", head_dim=10).save_pretrained(here / "mine" / "model")
    found = as_json(capsys, "advise", "mine", "--variant", "QKV", "--variant", "K=V MQA")
    assert (found["model"]["heads"], found["model"]["width"], found["trained"]) == (6, 13, "mine")
    assert found["ask"]["context"] == 53
    words = printed(capsys, "advise", "mine")
    assert "mine is trained as K=V MQA: any other variant means training anew." in words


def test_a_published_model_is_told_in_one_line(capsys, here):
    for name, config in {"gemma": GEMMA_4_31B, "deepseek": DEEPSEEK_V2, "llama": LLAMA_3_8B}.items():
        (here / name).mkdir()
        (here / name / "config.json").write_text(json.dumps(config))
    out = run(capsys, "advise", "gemma", "--context", "32768").out
    assert "any other sharing" in out.splitlines()[0]
    assert "need 2,080.00 MiB of cache, and transformers stores 3,360.00 MiB." in out.splitlines()[0]
    found = as_json(capsys, "advise", "--config", "llama", "--batch", "2", "--device", "RTX 4090", "--price", "0.4")
    assert found["plan"]["figures"][0]["devices"][0]["tokens_per_second"] > 0
    assert found["plan"]["memory_bytes"] == 24 * 10**9
    assert "what if K=V MQA" in printed(capsys, "advise", "llama", "--variant", "K=V MQA")
    assert "deepseek_v2 is trained" in printed(capsys, "advise", "deepseek", "--scenario", "cloud", "--memory", "1TB")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "edg"], "unknown scenario 'edg': did you mean 'edge'?"),
        (["--quality", "two"], "cannot read 'two' as a share that may be lost: write 2% or 0.5%"),
        (["--quality", "0.02"], "'0.02' may be a share or a percentage: write 2% or 0.02%"),
        (["--quality", "9" * 400], "too large a number"),
        (["--memory", "0"], "memory must be at least 1, not 0"),
        (["--memory", "8G"], "cannot read '8G' as an amount of memory"),
        (["--device", "H300"], "unknown device 'H300': did you mean"),
        (["--price", "3"], "--price needs a device: add --device"),
        (["--device", "L4", "--efficiency", "0"], "at least 0.001 and at most 1, not 0"),
        (["--device", "L4", "--price", "-1"], "at least 0, not -1"),
        (["--context", "0"], "context must be at least 1, not 0"),
        (["--dtype", "fp7"], "unknown dtype 'fp7'"),
        (["--records", "nowhere"], "nowhere holds no records"),
        (["--preset", "tiny", "--config", "x"], "--preset and --config exclude each other"),
        (["--variant", "K=W"], "K=W"),
        (["--baseline", "K=W"], "K=W"),
        (["--variant", "GQA-5"], "16"),
        (["empty"], "empty holds no model (no config.json): give a run or model folder"),
        (["damaged"], "damaged/config.json is not JSON that can be read"),
        (["llama", "--quality", "2%"], "--quality rank variants that are still to be trained"),
        (["--devices", "none.yaml", "--device", "L4"], "none.yaml is not there"),
    ],
)
def test_a_mistake_is_one_line(capsys, here, arguments, message):
    for name, content in {"empty": None, "damaged": "{", "llama": json.dumps(LLAMA_3_8B)}.items():
        (here / name).mkdir()
        if content:
            (here / name / "config.json").write_text(content)
    outcome = run(capsys, "advise", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_the_help_has_examples_and_numbers_are_never_cut(capsys, here, monkeypatch):
    assert "twofold advise --scenario cloud" in run(capsys, "advise", "--help").out
    monkeypatch.setenv("COLUMNS", "40")
    out = run(capsys, "advise", "--scenario", "cloud").out
    assert "…" not in out
    assert "\x1b" not in out


PLAN = ["plan", "--preset", "1.2B", "--rotary", "full", "--positions", "32768", "--context", "32768", "--batch", "32"]


def test_plan_shows_a_device_with_all_that_it_rests_on(capsys):
    asked = [*PLAN, "--variant", "QKV", "--variant", "MQA", "--device", "h100", "--device", "pi5"]
    outcome = run(capsys, *asked)
    assert (outcome.code, outcome.out) == (2, "")  # no device begins with that
    asked[-1] = "Raspberry Pi 5"
    found, words = as_json(capsys, *asked, "--price", "2.5"), printed(capsys, *asked, "--price", "2.5")
    for plan in found:
        assert [one["device"] for one in plan["devices"]] == ["H100 SXM", "Raspberry Pi 5"]
        for one in plan["devices"]:
            decode = one["decode"]
            assert decode["bytes"] == decode["weight_bytes"] + decode["row_bytes"]
            assert decode["row_bytes"] == plan["cache_bytes_batch"]
            assert one["tokens_per_second"] == 32 / decode["seconds"]
            shown = (
                f"{decode['weight_bytes'] / 2**20:,.2f} {decode['row_bytes'] / 2**20:,.2f} {decode['intensity']:,.2f}"
            )
            assert f"{plan['variant']} {shown}" in words
    for told in (
        "3,350 GB/s (10⁹ bytes), 989.4 TFLOPS dense for bfloat16, 80 GB; the whole roof is reached",
        "0.154 TFLOPS dense for bfloat16, computed in float32",
        "sequences: 32, each of 32,768 tokens; weights and rows in bfloat16",
        "weights are read once per step, rows once per sequence",
        "not a measurement",
        "The price is 2.5 per hour",
        "memory 560 8.61 no 13 13,451 –",
    ):
        assert told in words


def test_plan_without_a_device_says_nothing_of_one(capsys):
    assert "devices" not in as_json(capsys, *PLAN)
    assert "GB/s" not in printed(capsys, *PLAN)


def test_plan_takes_devices_of_a_file(capsys, here):
    (here / "mine.yaml").write_text(
        "- {name: Desk, memory_gb: 2, bandwidth_gb_s: 10, peak_tflops: {float32: 1}, source: measured}"
    )
    found = as_json(capsys, *PLAN, "--device", "desk", "--devices", "mine.yaml", "--efficiency", "0.5")["devices"][0]
    assert found["decode"]["memory_seconds"] == pytest.approx(found["decode"]["bytes"] / 5e9)
    assert found["efficiency"] == 0.5
    words = printed(capsys, *PLAN, "--device", "desk", "--devices", "mine.yaml", "--efficiency", "0.5")
    assert "50 % of the roof is reached; measured" in words


def test_plan_of_a_published_model_has_devices_too(capsys, here):
    (here / "config.json").write_text(json.dumps(LLAMA_3_8B))
    found = as_json(capsys, "plan", "--config", ".", "--device", "H200", "--batch", "4")
    for figures in found["figures"]:
        assert figures["devices"][0]["cache_bytes"] == figures["bytes_batch"]
    assert "needed 14,314.51" in printed(capsys, "plan", "--config", ".", "--device", "H200", "--batch", "4")
