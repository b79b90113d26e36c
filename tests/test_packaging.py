"""The package as others get it: an sdist with all sources, and a wheel that works far away from the
checkout.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from cfol_fast import __version__
from cfol_fast.commands import doctor
from cfol_fast.runs.toml_files import read_toml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
TRAIN = [
    "train",
    "cfol",
    "--out=run",
    "--epochs=1",
    "--set=steps_per_epoch=2",
    "--set=batch_size=16",
    "--device=cpu",
    "--holdout=none",
]
TRAIN += ["--set=attack.steps=1", "--set=test.steps=1", "--quiet"]
EVAL = ["eval", "run", "--limit=20", "--steps=1", "--device=cpu"]


def run(*command, cwd=ROOT, **environment):
    result = subprocess.run(
        [str(c) for c in command], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """What `make wheel` leaves, for the CPU (the CUDA build has its own tests). It builds from the sdist, so
    that a file missing there is noticed."""
    folder = tmp_path_factory.mktemp("dist")
    run("bash", "scripts/build-wheel.sh", sys.executable, folder, CFOL_CUDA="0")
    return folder


@pytest.fixture(scope="module")
def sdist(built):
    (path,) = built.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
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


def test_the_wheel_brings_no_library_of_torch_and_names_its_linux(wheel):
    libraries = [name for name in zipfile.ZipFile(wheel).namelist() if ".so" in name]
    assert sorted(name.split(".")[0] for name in libraries) == ["cfol_fast/_host", "cfol_fast/_ops"]
    assert "-manylinux_" in wheel.name


@pytest.mark.nvcc
def test_the_library_with_cuda_kernels_needs_no_library_of_cuda():
    """So one wheel serves CPU builds of torch too."""
    with open(ROOT / "cfol_fast/_ops.abi3.so", "rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        needed = {tag.needed.split(".")[0] for tag in dynamic.iter_tags("DT_NEEDED")}
    torchs = {"libtorch", "libtorch_cpu", "libc10"}
    systems = {"libstdc++", "libgcc_s", "libc", "libm", "ld-linux-x86-64", "libdl", "librt", "libpthread"}
    assert needed <= torchs | systems


def test_the_wheel_says_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    said = Parser().parsestr(archive.read(name).decode())
    assert said["Version"] == __version__
    for field in ("Summary", "Author", "Keywords", "License-Expression", "Project-URL", "Requires-Python"):
        assert said[field], field
    assert "Operating System :: POSIX :: Linux" in said.get_all("Classifier")


def test_the_wheel_trains_and_evaluates_in_a_new_environment_without_a_compiler(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # torch and the rest come from this environment; its .pth files, the editable install among them, do not
    # count there
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    bare = {"PATH": str(tmp_path / "env" / "bin"), "PYTHONPATH": "", "CC": "", "CXX": "", "CUDA_HOME": ""}
    assert shutil.which("g++", path=bare["PATH"]) is None
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel, **bare)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = run(python, "-c", "import cfol_fast; print(cfol_fast.__file__)", cwd=elsewhere, **bare)
    assert where.startswith(str(site))
    run(python, "-m", "cfol_fast", *TRAIN, cwd=elsewhere, **bare)
    assert "worst class" in run(python, "-m", "cfol_fast", *EVAL, cwd=elsewhere, **bare)


def test_the_doctor_names_what_the_extras_install():
    """The package itself is on no index: a hint to install one of its extras from there would fail."""
    extras = read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    for name, requirements in extras.items():
        if name != "dev":
            hint = doctor.EXTRAS[name][2]
            assert all(requirement in hint for requirement in requirements)
            assert "cfol" not in hint
