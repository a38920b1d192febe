"""Labels from the gradient of a batch alone: against autograd's answers, and through a whole federation."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attacker.labels.batch import jacobians, taken_apart
from vfl.config import parse_config
from vfl.datasets.slices import load_data
from vfl.folder.summary import load_summary
from vfl.local.simulation import simulate


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(2, 6), st.integers(1, 5), st.integers(0, 2**31))
def test_the_gradient_of_a_batch_has_the_answers_where_parameters_are_many(rows, features, width, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(features, 40), nn.Tanh(), nn.Linear(40, width))
        x, answers = torch.randn(rows, features), torch.randn(rows, width)
    parameters = dict(model.named_parameters())
    (model(x) * answers).sum().backward()
    jacobian = jacobians(model, {name: one.detach() for name, one in parameters.items()}, {}, x)
    gradient = torch.cat([one.grad.flatten() for one in parameters.values()]).double()
    found, shown = taken_apart(jacobian.reshape(rows * width, -1), gradient, rows)
    assert (shown > 0.999).all()
    torch.testing.assert_close(found.float(), answers, rtol=1e-2, atol=1e-2)


def test_where_two_samples_are_the_same_only_the_sum_of_their_answers_is_shown():
    model = nn.Linear(3, 2)
    x, answers = torch.randn(1, 3).repeat(2, 1), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    jacobian = jacobians(model, dict(model.named_parameters()), {}, x).reshape(4, -1).detach()
    found, shown = taken_apart(jacobian, jacobian.t() @ answers.double().flatten(), 2)
    assert (shown < 0.6).all()
    torch.testing.assert_close(found, torch.tensor([[0.5, 1.5], [0.5, 1.5]], dtype=torch.float64))


def test_a_worker_has_all_labels_from_sums_alone(tmp_path):
    tree = {
        "seed": 0,
        "data": {"name": "digits", "samples": 100, "test_samples": 0},
        "federation": {"workers": 2, "batch_size": 20, "epochs": 1},
        "model": {"name": "mlp", "hidden": [64]},
        "training": {"optimizer": "adam", "lr": 0.001},
        "adversary": {"worker": 1},
        "attack": {"name": "label_batch"},
    }
    config = parse_config(tree, "the test")
    simulate(config, load_data(config), tmp_path)
    attack = load_summary(tmp_path).attack
    assert list(attack.ledger.seen) == ["gradients"]
    assert attack.label_accuracy >= 0.99
    assert "determine the answers of 100 of 100 samples" in attack.notes[0]
