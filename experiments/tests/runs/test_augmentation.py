"""Augmented images: mirrored and shifted copies, drawn anew at every access."""

import torch

from momentprop.data import Split, digits
from momentprop_experiments import Config, load_model, train
from momentprop_experiments.runs.augmentation import SHIFT, Augmented, mirrored, shifted


def test_every_image_is_shifted_by_whole_pixels():
    images = torch.rand(200, 2, 12, 10, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    found = shifted(images)
    padded = torch.nn.functional.pad(images, (SHIFT,) * 4)
    seen = set()
    for image, all_of_it in zip(found, padded, strict=True):
        places = [
            (row, column)
            for row in range(2 * SHIFT + 1)
            for column in range(2 * SHIFT + 1)
            if torch.equal(image, all_of_it[:, row : row + 12, column : column + 10])
        ]
        assert len(places) == 1
        seen |= set(places)
    rows, columns = ({place[axis] for place in seen} for axis in (0, 1))
    assert rows == columns == set(range(2 * SHIFT + 1))


def test_half_of_the_images_are_mirrored():
    images = torch.rand(1000, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    found = mirrored(images)
    turned = (found == images.flip(-1)).all(-1).all(-1).all(-1)
    same = (found == images).all(-1).all(-1).all(-1)
    assert bool((turned ^ same).all())
    assert 400 < int(turned.sum()) < 600


def test_an_augmented_split_keeps_its_labels_and_draws_anew():
    plain: Split = digits("test")
    split = Augmented(plain.images, plain.labels, torch.tensor([0.1]), torch.tensor([0.3])).to("cpu")
    torch.manual_seed(0)
    (first, labels), (second, _) = split.batch(range(8)), split.batch(range(8))
    assert torch.equal(labels, plain.labels[:8])
    assert not torch.equal(first, second)


def test_a_narrow_network_is_trained_on_augmented_images_and_loaded(tmp_path):
    config = Config(network="resnet18", width=2, augment=True, method="ap1", norm="bn", epochs=1, train_images=64)
    train(config, tmp_path / "run", progress=False)
    model, about = load_model(tmp_path / "run")
    assert model[0][0].out_channels == 2
    assert about["command"].endswith("--width 2 --augment")
