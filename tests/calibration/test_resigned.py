"""A file whose checksum is right but whose content makes no sense gives one clear error."""

import copy
from json import dumps as _dumps

import pytest
import torch
from torch import nn

from momentprop import Calibration, calibrate
from momentprop.files import FileError, write_tensors
from tests.calibration.models import X

torch.manual_seed(0)
WHOLE = calibrate(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).eval(), X, input_variance=0.1, samples=10)
GONE = object()


def _set(*path, to):
    def changed(content, tensors):
        inside = content
        for key in path[:-1]:
            inside = inside[key]
        if to is GONE:
            del inside[path[-1]]
        else:
            inside[path[-1]] = to
        return content, tensors

    return changed


def _numbers(change):
    return lambda content, tensors: (content, {"numbers": change(tensors["numbers"])})


INVALID = "is not a valid calibration: "
MUTATIONS = [
    (lambda c, t: ([1], t), INVALID + r"it must be a dict, but is \[1\]"),
    (lambda c, t: ("<script>", t), INVALID + "it must be a dict, but is '<script>'"),
    (_set("format", to=GONE), "has format None, but this version reads 2: calibrate again"),
    (_set("format", to="2"), "has format 2, but this version reads 2"),
    (_set("format", to=[]), r"has format \[\], but this version reads 2"),
    (_set("features", to="some"), INVALID + "calibration.features must be one of 'all', .*, but is 'some'"),
    (_set("features", to=["all"]), INVALID + r"calibration.features must be one of .*, but is \['all'\]"),
    (_set("features", to="channel"), INVALID + "its numbers must have the shape"),
    (_set("noise", to=GONE), INVALID + "calibration has no entry 'noise'"),
    (_set("noise", "more", to=1), INVALID + "calibration.noise has an unknown entry 'more'"),
    (_set("noise", "dropout", to="no"), INVALID + "calibration.noise.dropout must be a bool, but is 'no'"),
    (_set("noise", "family", to="gauss"), INVALID + "calibration.noise.family must be one of 'normal', 'logistic'"),
    (_set("noise", "levels", to=[]), INVALID + r"its levels must be ascending variances, but are \(\)"),
    (_set("noise", "levels", to=[-1.0]), INVALID + "its levels must be ascending variances"),
    (_set("noise", "levels", to=[2, 1]), INVALID + "its levels must be ascending variances"),
    (_set("noise", "levels", to=[0, 1]), INVALID + "its levels must be ascending variances"),
    (
        _set("noise", "levels", to=[float("nan")]),
        INVALID + "its levels must be ascending variances",
    ),
    (_set("noise", "levels", to=[10**400]), INVALID + r"calibration.noise.levels\[0\] must be a float, but is 1000"),
    (
        _set("noise", "levels", to=[0.1, 0.2]),
        INVALID + r"its numbers must have the shape \(2, \d+\), but have \(1, \d+\)",
    ),
    (_set("places", to={}), INVALID + "calibration.places must be a tuple"),
    (_set("places", to=[]), INVALID + r"its numbers must have the shape \(1, 0\)"),
    (_set("places", 0, to=[1]), INVALID + r"calibration.places\[0\] must be a Place, but is \[1\]"),
    (_set("places", 0, "channels", to=10**18), INVALID + r"its numbers must have the shape \(1, \d{19}"),
    (_set("places", 0, "channels", to=-4), INVALID + "there is no such place as Place"),
    (_set("places", 0, "channels", to=4.0), INVALID + r"calibration.places\[0\].channels must be an int, but is 4.0"),
    (_set("places", 0, "rank", to=-1), INVALID + "there is no such place"),
    (_set("places", 0, "rank", to=10**9), INVALID + "its numbers must have the shape"),
    (_set("places", 0, "dims", to=[0]), INVALID + "there is no such place"),
    (_set("places", 0, "dims", to=[-(10**12)]), INVALID + "there is no such place"),
    (_set("places", 0, "call", to=0), INVALID + "there is no such place"),
    (_set("places", 0, "path", to=None), INVALID + r"calibration.places\[0\].path must be a str, but is None"),
    (_set("quality", to=[]), INVALID + "calibration.quality must be a dict"),
    (_set("quality", to={"a": [{"level": 1}]}), INVALID + r"calibration.quality.a\[0\] has no entry 'factors'"),
    (_set("about", to=None), INVALID + "calibration.about must be a dict, but is None"),
    (_set("about", "inputs", to="many"), INVALID + "about.inputs must be an int, but is 'many'"),
    (_set("about", "samples", to=GONE), INVALID + "about.samples must be an int, but is None"),
    (_set("fingerprint", to=7), INVALID + "calibration.fingerprint must be a Fingerprint, but is 7"),
    (
        _set("fingerprint", "weights", "0.bias", to=["x"]),
        INVALID + "calibration.fingerprint.weights.0.bias must be a tuple",
    ),
    (_set("fingerprint", "modules", to={"": 3}), INVALID + "calibration.fingerprint.modules. must be a str, but is 3"),
    (
        _set("fingerprint", "constants", to={"0": {"p": 1}}),
        INVALID + "calibration.fingerprint.constants.0.p must be a str",
    ),
    (lambda c, t: (c, {}), INVALID + "its numbers are missing"),
    (_numbers(lambda x: x[:, :-1]), INVALID + "its numbers must have the shape"),
    (_numbers(lambda x: x[0]), INVALID + r"its numbers must have the shape .*, but have \(\d+,\)"),
    (_numbers(lambda x: x[:0]), INVALID + r"its numbers must have the shape .*, but have \(0, \d+\)"),
    (_numbers(lambda x: x * float("nan")), INVALID + "its numbers must be finite floating-point numbers"),
    (_numbers(lambda x: x.long()), INVALID + "its numbers must be finite floating-point numbers"),
]


@pytest.mark.parametrize(("mutation", "message"), MUTATIONS, ids=range(len(MUTATIONS)))
def test_content_that_makes_no_sense_is_refused(mutation, message, tmp_path):
    path = tmp_path / "file.safetensors"
    content, tensors = mutation(copy.deepcopy(WHOLE.to_dict()), {"numbers": WHOLE.numbers})
    write_tensors(path, {"calibration": content}, tensors, "calibration")
    with pytest.raises(ValueError, match=message) as error:
        Calibration.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_the_content_as_it_was_is_accepted(tmp_path):
    WHOLE.save(tmp_path / "file.safetensors")
    assert Calibration.load(tmp_path / "file.safetensors").to_dict() == WHOLE.to_dict()


@pytest.mark.parametrize("state", [[1, 2], "text", None, 3])
def test_a_state_that_is_no_dictionary_is_refused(state, tmp_path):
    write_tensors(tmp_path / "file", state, {}, "calibration")
    with pytest.raises(FileError, match="is not a valid calibration: its state is not a dictionary"):
        Calibration.load(tmp_path / "file")


def test_a_state_that_json_cannot_read_is_refused(tmp_path, monkeypatch):
    for text in ("{", "[" * 100_000, '{"a": NaN'):
        with monkeypatch.context() as patch:
            patch.setattr(
                "momentprop.files.json.dumps", lambda given, text=text: text if given == {} else _dumps(given)
            )
            write_tensors(tmp_path / "file", {}, {}, "calibration")
        with pytest.raises(FileError, match="is not a valid calibration: its state is not JSON"):
            Calibration.load(tmp_path / "file")
    with pytest.raises(FileError, match="is a folder, not a calibration"):
        Calibration.load(tmp_path)
