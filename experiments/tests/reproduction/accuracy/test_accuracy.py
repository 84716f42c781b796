"""The accuracy tables: the measured numbers are those of `check`, beside the printed ones."""

import dataclasses
import json
import math

import pytest
import torch

import momentprop
from momentprop import cli
from momentprop.data import Split, digits
from momentprop_experiments.options import Options
from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.accuracy import accuracy, accuracy_cifar, accuracy_lenet
from momentprop_experiments.reproduction.accuracy.accuracy_report import markdown
from momentprop_experiments.runs import trained_networks

RESULTS = results_folder() / "paper"
STUDIES = {"lenet": accuracy_lenet.STUDY, "cifar": accuracy_cifar.STUDY}


@pytest.fixture(scope="module")
def lenet(tmp_path_factory):
    out = tmp_path_factory.mktemp("lenet")
    files = accuracy_lenet.run(out, Options(quick=True, device="cpu")).save(out, accuracy_lenet.NAME)
    assert sorted(file.suffix for file in files) == [".json", ".md", ".png", ".svg"]
    return json.loads(files[0].read_text()), files[1].read_text(encoding="utf-8")


def test_the_numbers_are_those_of_check(lenet):
    data, _ = lenet
    model, about = trained_networks.load("lenet-dropout")
    images = (digits("test").images[: accuracy.QUICK.images] - about["mean"][0]) / about["std"][0]
    effort = {"samples": accuracy.QUICK.draws, "units": accuracy.QUICK.units}
    methods = ("ap1", "ap2", "ap2-logistic", "ap2-fitted")
    report = momentprop.check(model, images, dropout=True, methods=methods, **effort)
    found = data["cases"]["dropout"]["methods"]
    for name in methods:
        assert found[name]["eps_mean"][0] == pytest.approx(report["dropout1"].methods[name].eps_mean, rel=1e-3)
        assert found[name]["eps_mean"][-1] == pytest.approx(report["output"].methods[name].eps_mean, rel=1e-3)
    assert found["ap2"]["eps_std"][1] == pytest.approx(report["conv2"].methods["ap2"].eps_std, rel=1e-3)
    assert found["ap2"]["kl_race"] == pytest.approx(report.posterior.methods["ap2"]["kl_race"], rel=1e-3)


def test_the_text_has_the_papers_numbers_beside_ours(lenet):
    data, text = lenet
    assert text.startswith(f"# {accuracy_lenet.TITLE}\n")
    for case in data["cases"].values():
        assert f"**{case['title']}**" in text
        assert len(case["methods"]["ap2"]["eps_std"]) == len(data["columns"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["AP1 eps_mean, paper", "0.31", "0.74", "0.51", "1.47", "1.11", "1.60", "5.09", "–", "–"] in rows
    assert ["AP2 eps_mean, paper", "0.02", "0.02", "0.02", "0.03", "0.02", "0.03", "4.5e-7", "3.8e-7", "–"] in rows


def test_the_cifar_table_has_dashes_where_nothing_is_random(monkeypatch, tmp_path):
    images = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    asked = []

    def load_split(*given):
        asked.append(given)
        return Split(images, torch.zeros(1, dtype=torch.int64))

    monkeypatch.setattr(accuracy, "load_split", load_split)
    monkeypatch.setattr(accuracy, "QUICK", dataclasses.replace(accuracy.QUICK, images=1, draws=2))
    few = {"dropout": accuracy_cifar.STUDY.cases["dropout"]}
    monkeypatch.setattr(accuracy_cifar, "STUDY", dataclasses.replace(accuracy_cifar.STUDY, cases=few))
    result = accuracy_cifar.run(tmp_path, Options(quick=True, root=tmp_path, device="cpu"))
    assert asked == [("cifar10", "test", tmp_path)]  # the training images need not be there
    (case,) = result.data["cases"].values()
    for figures in (case["printed"]["ap1"], case["methods"]["ap2"]["eps_std"]):
        assert figures[0] is None
        assert None not in figures[1:]
    assert case["scales"] is None


def test_dropout_belongs_to_the_activation_before_it():
    columns = accuracy_lenet.STUDY.columns
    assert accuracy.modules(columns, trained_networks.load("lenet-dropout")[0])[:3] == ["dropout1", "conv2", "dropout2"]
    assert accuracy.modules(columns, trained_networks.load("lenet-lrelu")[0])[:3] == [
        "activation1",
        "conv2",
        "activation2",
    ]


def test_an_error_near_that_of_the_draws_is_hidden():
    exact = torch.nn.Linear(1, 3)
    assert accuracy.hidden(momentprop.check(exact, torch.ones(2, 1), input_variance=1.0, samples=30, show=()))
    # copies of one input, averaged: AP2 takes them as independent, and their mean as nearly certain
    copies, average = torch.nn.Linear(1, 100), torch.nn.Linear(100, 3)
    for parameter, number in ((copies.weight, 1.0), (average.weight, 0.01), (copies.bias, 0.0), (average.bias, 0.0)):
        torch.nn.init.constant_(parameter, number)
    wrong = torch.nn.Sequential(copies, average, torch.nn.Tanh(), torch.nn.Linear(3, 3))
    assert not accuracy.hidden(momentprop.check(wrong, torch.ones(2, 1), input_variance=1.0, samples=300, show=()))


def test_the_distance_is_a_root_mean_square_of_logarithms():
    expected = math.sqrt((math.log(2) ** 2 + 0) / 2)
    assert accuracy.distance([None, 0.2, 0.3], [None, 0.1, 0.3]) == pytest.approx(expected)


@pytest.mark.parametrize("study", STUDIES)
def test_published_tables_are_of_the_cases_and_figures_here(study):
    data = json.loads((RESULTS / f"accuracy-{study}.json").read_text())
    assert data["images"] >= 128
    assert list(data["cases"]) == list(STUDIES[study].cases)
    for name, case in STUDIES[study].cases.items():
        found = data["cases"][name]
        assert found["draws"] >= 1000
        assert found["printed"] == json.loads(json.dumps(dataclasses.asdict(case.printed)))
        assert found["methods"]["ap2"]["eps_mean"][-1] < found["methods"]["ap1"]["eps_mean"][-1]
    module = accuracy_lenet if study == "lenet" else accuracy_cifar
    assert (RESULTS / f"accuracy-{study}.md").read_text(encoding="utf-8") == markdown(module.TITLE, data) + "\n"


def test_a_network_that_is_not_there_gives_one_line(tmp_path, capsys):
    arguments = ["paper", "accuracy-lenet", "--quick", "--out", str(tmp_path), "--networks", str(tmp_path)]
    assert cli.main(arguments) == 2
    assert f"there is no `lenet-lrelu.safetensors` in `{tmp_path}`: clone" in capsys.readouterr().err


def test_data_that_are_not_there_give_one_line(tmp_path, capsys):
    assert cli.main(["paper", "accuracy-cifar", "--quick", "--root", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert f"run `momentprop data get cifar10 --root {tmp_path}`" in capsys.readouterr().err


def test_a_device_that_is_not_there_gives_one_line(tmp_path, capsys):
    assert cli.main(["paper", "accuracy-lenet", "--quick", "--device", "nonsense", "--out", str(tmp_path)]) == 2
    assert "device 'nonsense' cannot be used" in capsys.readouterr().err
