"""The package as others get it: an sdist with all sources, and a wheel that works far away from the checkout."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from cfol_fast import __version__
from cfol_fast.commands import doctor
from cfol_fast.runs.toml_files import read_toml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
TEN_STEPS = """
import cfol_fast, sys
from cfol_fast.training import TrainConfig, train
assert sys.argv[1] in cfol_fast.__file__, cfol_fast.__file__
config = TrainConfig(method="cfol", out="run", epochs=1, steps_per_epoch=10, batch_size=16, device="cpu")
config.data.holdout, config.attack.steps, config.test.steps = "none", 1, 1
print(train(config, quiet=True).result["test"]["robust"]["worst_class"])
print(cfol_fast.load("run").training)
"""


def run(*command, cwd=ROOT, **environment):
    result = subprocess.run(
        [str(c) for c in command], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT)
    (path,) = folder.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built from the sdist, for the CPU (the CUDA build has its own tests), so that a file missing there is noticed."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = [p for p in folder.iterdir() if p.is_dir()]
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "-w",
        folder,
        source,
        CFOL_CUDA="0",
    )
    (path,) = folder.glob("*.whl")
    return path


def test_the_sdist_has_the_sources_and_nothing_built(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for source in [*ROOT.glob("csrc/**/*.h"), *ROOT.glob("csrc/**/*.cu"), *ROOT.glob("csrc/**/*.cpp")]:
        assert source.relative_to(ROOT).as_posix() in names
    assert not [name for name in names if name.endswith((".so", ".o"))]
    assert __version__ in sdist.name


def test_the_wheel_has_its_data_and_licences(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("_ops.abi3.so") for name in names)
    for wanted in ("cfol_fast/py.typed", "cfol_fast/data/embedded/LICENSE", "cfol_fast/recipes/paper.toml"):
        assert wanted in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_the_wheel_trains_ten_steps_away_from_the_checkout(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # torch and the rest come from this environment; its .pth files, the editable install among them, do not count there
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    output = run(python, "-c", TEN_STEPS, site, cwd=elsewhere, PYTHONPATH="")
    assert output.splitlines()[-1] == "False"


def test_the_doctor_names_what_the_extras_install():
    """The package itself is on no index: a hint to install one of its extras from there would fail."""
    extras = read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    for name, requirements in extras.items():
        if name != "dev":
            hint = doctor.EXTRAS[name][2]
            assert all(requirement in hint for requirement in requirements)
            assert "cfol" not in hint
