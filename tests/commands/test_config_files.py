"""`--config` reads what `--print-config` prints and what a run writes, and TOML."""

import json

import pytest

from cfol_fast.commands import main as cli

STARTS = [
    "train cfol",
    "train erm --dataset cifar10 --data /images --eps 12/255 --precision float32",
    "train lcvar --dataset cifar100 --data /images --set alpha=0.3 --ema 0.99 --seed 3",
    "train cfol-trades --dataset folder --data /images --model wrn-28-10 --epochs 7 --holdout none",
    "train erm --set attack.kind=n-fgsm",
]


def printed(capsys, *words: str) -> dict:
    status = cli.main([*words, "--print-config"])
    out, err = capsys.readouterr()
    assert status == 0, err
    return json.loads(out)


@pytest.mark.parametrize("name", ["settings.json", "settings"])
@pytest.mark.parametrize("start", STARTS)
def test_a_printed_configuration_read_again_is_the_same(capsys, tmp_path, start, name):
    first = printed(capsys, *start.split())
    (tmp_path / name).write_text(json.dumps(first, indent=2))
    assert printed(capsys, "train", "--config", str(tmp_path / name)) == first
    changed = printed(capsys, "train", "--config", str(tmp_path / name), "--batch-size", "64")
    assert changed == {**first, "batch_size": 64}


def test_json_and_toml_with_the_same_settings_are_the_same_run(capsys, tmp_path):
    (tmp_path / "a.json").write_text('{"method": "cfol", "attack": {"eps": "4/255"}, "params": {"eta": 0.5}}')
    (tmp_path / "a.toml").write_text('method = "cfol"\nattack.eps = "4/255"\nparams.eta = 0.5\n')
    found = [printed(capsys, "train", "--config", str(tmp_path / name)) for name in ("a.json", "a.toml")]
    assert found[0] == found[1]
    assert found[0]["params"]["eta"] == 0.5


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "broken JSON at line 1"),
        ("[1]", "expected a JSON object"),
        ('{"atack": {"eps": 1}}', "'atack'"),
        ('{"epochs": "many"}', "epochs"),
    ],
)
def test_a_wrong_json_file_is_one_line_and_status_2(capsys, tmp_path, text, part):
    (tmp_path / "a.json").write_text(text)
    assert cli.main(["train", "cfol", "--config", str(tmp_path / "a.json")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert part in err


@pytest.mark.slow
def test_the_config_json_of_a_run_is_the_same_run_elsewhere(capsys, tmp_path):
    few = "--epochs=1 --set=steps_per_epoch=1 --model=demo-cnn@0.25 --device=cpu --set=attack.steps=1"
    few += " --set=validation.steps=1 --set=test.steps=1 --quiet"
    assert cli.main(["train", "cfol", *few.split(), "--out", str(tmp_path / "a")]) == 0
    capsys.readouterr()
    written, other = tmp_path / "a/config.json", str(tmp_path / "b")
    again = printed(capsys, "train", "--config", str(written), "--out", other)
    assert again == {**json.loads(written.read_text()), "out": other}
