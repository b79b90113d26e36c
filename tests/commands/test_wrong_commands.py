"""Wrong commands, one row each: misspelt, missing, of the wrong type, contradicting.

Each answers with status 2 and one line, which names the word that is wrong.
"""

import pytest

from cfol_fast.commands import main as cli

# What is typed; a part of the line that names the mistake; the help that the line names, if it names one.
WRONG = [
    # Misspelt commands and those of other programs.
    ("tran", "did you mean 'train'?", "cfol-fast --help"),
    ("trian cfol --epochs 3", "did you mean 'train'?", "cfol-fast --help"),
    ("evla runs/a", "did you mean 'eval'?", "cfol-fast --help"),
    ("evaluate runs/a", "did you mean 'eval'?", "cfol-fast --help"),
    ("predict runs/a", "did you mean 'eval'?", "cfol-fast --help"),
    ("test runs/a", "did you mean 'eval'?", "cfol-fast --help"),
    ("exprot runs/a", "did you mean 'export'?", "cfol-fast --help"),
    ("reports runs/a", "did you mean 'report'?", "cfol-fast --help"),
    ("docter", "did you mean 'doctor'?", "cfol-fast --help"),
    ("xyzzy", "unknown command 'xyzzy'; known are ", "cfol-fast --help"),
    ("data to-fcv", "did you mean 'to-ffcv'?", "cfol-fast data --help"),
    # Misspelt options, those of other programs, and abbreviations.
    ("--verison", "did you mean '--version'?", "cfol-fast --help"),
    ("--epochs 3 train cfol", "unknown option '--epochs'", "cfol-fast --help"),
    ("train cfol --epoch 3", "did you mean '--epochs'?", "cfol-fast train --help"),
    ("train cfol --epoch=3", "did you mean '--epochs'?", "cfol-fast train --help"),
    ("train cfol --learning-rate 0.1", "did you mean '--lr'?", "cfol-fast train --help"),
    ("train cfol --epsilon 8/255", "did you mean '--eps'?", "cfol-fast train --help"),
    ("train cfol --batchsize 8", "did you mean '--batch-size'?", "cfol-fast train --help"),
    ("train cfol --batch_size 8", "did you mean '--batch-size'?", "cfol-fast train --help"),
    ("train cfol --datset cifar10", "did you mean '--dataset'?", "cfol-fast train --help"),
    ("train cfol --overwrit", "did you mean '--overwrite'?", "cfol-fast train --help"),
    ("train cfol --frobnicate", "unknown option '--frobnicate'", "cfol-fast train --help"),
    ("train cfol -e 3", "unknown option '-e'", "cfol-fast train --help"),
    ("eval runs/a --attck pgd", "did you mean '--attack'?", "cfol-fast eval --help"),
    ("eval runs/a --restart 3", "did you mean '--restarts'?", "cfol-fast eval --help"),
    ("report a --output x.html", "did you mean '--out'?", "cfol-fast report --help"),
    ("data to-ffcv --datset cifar10", "did you mean '--dataset'?", "cfol-fast data to-ffcv --help"),
    # Misspelt values.
    ("train cfl", "did you mean 'cfol'?", None),
    ("train cfol --dataset cifar-10", "did you mean 'cifar10'?", None),
    ("train cfol --model resnet-18", "did you mean 'resnet18'?", None),
    ("train cfol --set atack.steps=3", "did you mean 'attack.steps'?", None),
    ("train cfol --set optimiser.lr=3", "did you mean 'optimizer.lr'?", None),
    ("train cfol --log tensorbord", "--log must be one of tensorboard, wandb", "cfol-fast train --help"),
    ("eval runs/a --norm linff", "--norm must be one of linf, l2, got 'linff'", "cfol-fast eval --help"),
    ("eval runs/a --loss cross-entropy", "--loss must be one of ce, cw", "cfol-fast eval --help"),
    ("eval runs/a --attack pdg", "pdg", None),
    # Missing.
    ("train", "which METHOD?", None),
    ("train cfol --epochs", "--epochs: expected one argument", "cfol-fast train --help"),
    ("train cfol --set", "--set: expected one argument", "cfol-fast train --help"),
    ("train --resume", "--resume needs --out", None),
    ("eval", "Give a run folder or a file", None),
    ("eval nowhere", "nowhere", None),
    ("compare runs/a", "required", "cfol-fast compare --help"),
    ("data", "required: ACTION", "cfol-fast data --help"),
    ("data to-ffcv --dataset cifar10", "required: --out", "cfol-fast data to-ffcv --help"),
    ("export nowhere", "required: --out", "cfol-fast export --help"),
    ("export nowhere --out x.pt", "nowhere", None),
    # Of the wrong type, or outside the limits.
    ("train cfol --epochs three", "'three'", None),
    ("train cfol --epochs 1.5", "--epochs", None),
    ("train cfol --seed x", "--seed", None),
    ("train cfol --batch-size -3", "batch_size must be at least 1", None),
    ("train cfol --eps 8/0", "--eps", None),
    ("train cfol --threads many", "--threads must be a whole number", "cfol-fast train --help"),
    ("train cfol --compile=maybe", "--compile", "cfol-fast train --help"),
    ("train cfol --set eta=fast", "eta", None),
    ("train cfol --set epochs", "--set takes key=value", None),
    ("train cfol --precision float8", "precision must be one of", None),
    ("eval runs/a --limit none", "--limit must be a whole number", "cfol-fast eval --help"),
    ("eval runs/a --eps 1/2/3", "--eps", "cfol-fast eval --help"),
    ("eval runs/a --steps 0", "--steps must be at least 1", "cfol-fast eval --help"),
    # Contradicting, or too many.
    ("train cfol erm", "unexpected argument 'erm'", "cfol-fast train --help"),
    ("train cfol --resume --overwrite", "contradict", None),
    ("train cfol --force", "--force belongs to --resume", None),
    ("eval runs/a --attack fgsm --steps 3", "--steps belongs to --attack", None),
    ("eval runs/a --attack none --sanity", "it needs --attack pgd", None),
    ("eval runs/a --attack none --state s.json", "--state belongs to --attack autoattack", None),
]


@pytest.mark.parametrize(("typed", "part", "help_named"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_command_is_one_line_and_status_2(capsys, tmp_path, monkeypatch, typed, part, help_named):
    monkeypatch.chdir(tmp_path)
    status = cli.main(typed.split())
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert part in err
    assert "Traceback" not in err
    assert ("--help)" in err) == (help_named is not None)
    if help_named is not None:
        assert err.endswith(f"(see {help_named})\n")


@pytest.mark.parametrize("word", ["--epochs\n=3", "--\x1b[31mred", "-\x1b[31m"])
def test_a_typed_word_cannot_steer_the_terminal_or_break_the_line(capsys, word):
    assert cli.main(["train", "cfol", word]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
