"""Finding the folder `results` in a clone, and the trained networks in it."""

import pytest

from momentprop.errors import UserError
from momentprop_experiments import repository
from momentprop_experiments.runs import trained_networks


def test_the_results_of_the_repository_are_found():
    assert (repository.results_folder() / "networks" / "lenet-lrelu.safetensors").is_file()
    assert trained_networks.find("lenet-lrelu") is not None


def test_an_installed_package_finds_the_clone_that_it_is_run_in(tmp_path, monkeypatch):
    monkeypatch.setattr(repository, "__file__", str(tmp_path / "site-packages" / "repository.py"))
    clone = tmp_path / "clone"
    (clone / "experiments").mkdir(parents=True)
    (clone / "experiments" / "pyproject.toml").touch()
    (clone / "results").mkdir()
    (clone / "docs").mkdir()
    monkeypatch.chdir(clone / "docs")
    assert repository.results_folder() == clone / "results"


def test_outside_of_a_clone_an_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(repository, "__file__", str(tmp_path / "repository.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="cannot find the folder `results`: clone the repository"):
        repository.results_folder()
    assert trained_networks.find("lenet-lrelu") is None
    with pytest.raises(UserError, match=r"no `lenet-lrelu.safetensors` in `results/networks`: clone the repository"):
        trained_networks.load("lenet-lrelu")
    with pytest.raises(UserError, match="name the folder with `--networks`"):
        trained_networks.load("lenet-lrelu", tmp_path)
