"""The package: the program, the stubs, the page."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import pytest

import tandem

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs/python.md"


def test_the_program_is_the_binary(tmp_path):
    module = [sys.executable, "-m", "tandem"]
    script = [str(pathlib.Path(sys.executable).with_name("tandem"))]
    for command in [module, script]:
        version = subprocess.run([*command, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
        assert version == f"tandem {tandem.__version__}\n"
        wrong = subprocess.run([*command, "plan", "--nothing"], stderr=subprocess.PIPE, text=True)
        assert wrong.returncode == 2 and "--nothing" in wrong.stderr


def test_the_versions_agree():
    assert importlib.metadata.version("tandem-speech") == tandem.__version__


def test_the_core_imports_neither_torch_nor_numpy():
    program = "import sys, tandem; print(sorted({'torch', 'numpy', 'jax'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE).stdout == b"[]\n"


def test_the_stubs_are_what_the_module_has(tmp_path):
    allowed = tmp_path / "allowed"
    try:
        import torch  # noqa: F401

        allowed.write_text("")
    except ImportError:
        allowed.write_text("tandem.torch\n")
    command = [sys.executable, "-m", "mypy.stubtest", "tandem", "--allowlist", str(allowed)]
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n[mypy-torch.*]\nignore_missing_imports = True\n")
    checked = subprocess.run(
        [*command, "--mypy-config-file", str(config)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert checked.returncode == 0, checked.stdout


def test_the_script_of_the_page_trains(tmp_path):
    if not PAGE.exists():
        pytest.skip("the script of docs/python.md: the page is not beside the tests")
    (text,) = re.findall(r"```python script\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(text.splitlines()) <= 25, "the page promises about twenty lines"
    (tmp_path / "train.py").write_text(text)
    subprocess.run([sys.executable, "-m", "tandem", "corpus", "demo", "--quiet", "-o", "demo"], cwd=tmp_path, check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)]
    assert len(losses) >= 2 and losses[-1] < losses[0], done.stdout
