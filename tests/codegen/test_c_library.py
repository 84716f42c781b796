"""Libraries on disk: built once, by whoever comes first, and never loaded when damaged."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from momentprop.codegen import c_library
from momentprop.codegen.formula import Unprintable
from momentprop.codegen.processes import CompilerError
from tests.codegen.conftest import needs_compiler, recorded

pytestmark = needs_compiler
X = torch.linspace(-1, 1, 9)


def accept(calls):
    """Find nothing wrong."""


def prepared(factor):
    return c_library.prepared([recorded(lambda x: [x * factor])], torch.device("cpu"))


def builds(monkeypatch):
    """A list that grows with every build."""
    made, build = [], c_library.build
    monkeypatch.setattr(c_library, "build", lambda *given: (made.append(given), build(*given)))
    return made


def test_what_is_on_disk_is_not_built_again(folder, monkeypatch):
    made = builds(monkeypatch)
    found, finish = prepared(2.0)
    assert not found
    assert torch.equal(finish(accept)[0](X)[0], 2 * X)
    found, finish = prepared(2.0)
    assert found
    assert torch.equal(finish(accept)[0](X)[0], 2 * X)
    assert not prepared(3.0)[0]
    assert len(made) == 1
    assert [path.suffix for path in folder.iterdir()] == [".so"]


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-5000], lambda content: b"", lambda content: b"x" + content[1:]]
)
def test_a_damaged_library_is_built_again(damage, folder):
    prepared(2.0)[1](accept)
    (library,) = folder.iterdir()
    content = library.read_bytes()
    library.unlink()  # this process has loaded it
    library.write_bytes(damage(content))
    found, finish = prepared(2.0)
    assert not found
    assert torch.equal(finish(accept)[0](X)[0], 2 * X)
    assert c_library.is_whole(library)


def test_two_may_build_the_same_at_once(folder, monkeypatch):
    monkeypatch.setattr(c_library, "is_whole", lambda place: False)
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda _: prepared(5.0)[1](accept), range(2)))
    assert all(torch.equal(call(X)[0], 5 * X) for (call,) in built)
    assert len(list(folder.iterdir())) == 1


def test_another_machine_has_other_libraries(folder, monkeypatch):
    before = c_library.place_of("source")
    monkeypatch.setattr(c_library, "_machine", lambda: "another")
    assert c_library.place_of("source") != before


def test_many_elements_are_computed_by_many_threads(folder, monkeypatch):
    (call,) = prepared(2.0)[1](accept)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    x = torch.randn(c_library._FEW + 5, generator=torch.manual_seed(0))
    assert torch.equal(call(x)[0], 2 * x)


def test_without_a_compiler_only_what_is_on_disk_is_used(folder, monkeypatch):
    prepared(2.0)[1](accept)
    monkeypatch.setattr(c_library, "compiler", lambda: None)
    assert prepared(2.0)[0]
    with pytest.raises(Unprintable, match="no C compiler was found: install gcc"):
        prepared(3.0)
    with pytest.raises(CompilerError, match="no C compiler was found"):
        c_library.build("", folder / "kernel.so")


def test_the_compiler_is_named_by_the_environment_or_found(monkeypatch):
    monkeypatch.setenv("CC", "sh")
    assert c_library.compiler().endswith("/sh")
    monkeypatch.setenv("CC", "no-such-compiler")
    found = c_library.compiler()
    assert found is None or found.endswith("gcc")
