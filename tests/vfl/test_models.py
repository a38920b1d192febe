import pytest
import torch

from vfl.errors import UserError
from vfl.models import build_bottom, build_top, output_width
from vfl.models.layers import fully_connected, representation
from vfl.registry import PluginSection

CNN = PluginSection(name="cafe_cnn")


@pytest.mark.parametrize(
    ("shape", "inputs"),
    [((3, 16, 16), 2048), ((1, 14, 14), 2048), ((1, 7, 7), 512), ((3, 32, 32), 8192), ((2, 5, 9), 768)],
)
def test_the_papers_network_fits_any_image(shape, inputs):
    model = build_bottom(CNN, shape, seed=0, worker=0)
    first = fully_connected(model, shape)[0]
    assert (first.name, first.inputs, first.outputs, first.sees_data) == ("fc1", inputs, 256, False)
    assert output_width(model, shape) == 10


def test_initialisation_depends_on_the_seed_and_the_worker_alone():
    def weights(seed, worker):
        return build_bottom(CNN, (1, 8, 8), seed, worker).fc1.weight

    first = weights(0, 0)
    torch.rand(3)  # whatever was drawn before
    assert torch.equal(weights(0, 0), first)
    assert not torch.equal(weights(0, 1), first)
    assert not torch.equal(weights(1, 0), first)
    state = torch.random.get_rng_state()
    build_top(CNN, [10, 10], 3, seed=0)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_models_first_layer_sees_the_data_of_an_mlp():
    section = PluginSection(name="mlp", hidden=[7, 5])
    model = build_bottom(section, (2, 3), 0, 0)
    layers = fully_connected(model, (2, 3))
    assert [(layer.inputs, layer.outputs, layer.sees_data) for layer in layers] == [
        (6, 7, True),
        (7, 5, False),
        (5, 10, False),
    ]
    x = torch.rand(4, 2, 3)
    assert torch.equal(representation(model, layers[0].name, x), x.flatten(1))


def test_representation_is_differentiable_and_leaves_no_hook():
    model = build_bottom(CNN, (1, 8, 8), 0, 0)
    x = torch.rand(2, 1, 8, 8, requires_grad=True)
    representation(model, "fc1", x).sum().backward()
    assert x.grad.abs().sum() > 0
    assert not model.fc1._forward_pre_hooks


def test_a_table_does_not_fit_the_cnn():
    with pytest.raises(UserError, match="use mlp for tables"):
        build_bottom(CNN, (5,), 0, 0)


PUBLIC = PluginSection.model_validate({"name": "cafe_cnn", "initialisation": "keras", "double_softmax": True})


def test_the_public_codes_network_begins_as_keras_does():
    model = build_bottom(PUBLIC, (1, 14, 14), 0, 0)
    for name, inputs, outputs in (("conv1", 25, 64 * 25), ("conv2", 64 * 25, 128 * 25), ("fc1", 2048, 256)):
        layer = model.get_submodule(name)
        limit = (6 / (inputs + outputs)) ** 0.5  # Glorot and Bengio 2010, uniform
        assert not layer.bias.any()
        assert 0.95 * limit < float(layer.weight.detach().abs().max()) <= limit * (1 + 1e-6)
        assert float(layer.weight.var()) == pytest.approx(limit**2 / 3, rel=0.1)
    assert not build_top(PUBLIC, [10] * 4, 10, 0).fc.bias.any()


def test_the_public_codes_loss_is_a_softmax_of_a_softmax():
    top = build_top(PUBLIC, [10] * 4, 10, 0)
    z, y = torch.rand(6, 40), torch.arange(6)
    expected = -top.fc(z).softmax(1).softmax(1).log()[torch.arange(6), y].mean()
    torch.testing.assert_close(torch.nn.functional.cross_entropy(top(z), y), expected)
    # A network that is sure and right has 1.46 at best, one that is sure and wrong 2.46: Table 8's 1.68 is near the end
    sure = torch.nn.functional.cross_entropy(torch.eye(10), torch.arange(10))
    assert float(sure) == pytest.approx(1.461, abs=1e-3)


def test_d2_is_the_papers_in_its_text_or_in_its_code():
    for d2 in (256, 1024):
        section = PluginSection.model_validate({"name": "cafe_cnn", "fc1": d2})
        assert fully_connected(build_bottom(section, (3, 16, 16), 0, 0), (3, 16, 16))[0].outputs == d2
