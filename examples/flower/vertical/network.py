"""The companies' networks in numpy: dense layers with ReLU between them, and their gradients by hand."""

import numpy as np

Arrays = dict[str, np.ndarray]


def layers_of(parameters: Arrays) -> list[str]:
    """Return the names of the dense layers, in their order: `1`, `3`, … as in a torch.nn.Sequential."""
    return sorted({name.rpartition(".")[0] for name in parameters}, key=lambda name: int(name or 0))


def forward(parameters: Arrays, x: np.ndarray) -> list[np.ndarray]:
    """Return what flows into each layer, and the output last."""
    flows, names = [x], layers_of(parameters)
    for name in names:
        z = flows[-1] @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]
        flows.append(z if name == names[-1] else np.maximum(z, 0))
    return flows


def backward(parameters: Arrays, flows: list[np.ndarray], answer: np.ndarray) -> Arrays:
    """Return the gradients of all parameters, given the loss's gradient of the output."""
    gradients: Arrays = {}
    for at, name in reversed(list(enumerate(layers_of(parameters)))):
        if at < len(flows) - 2:
            answer = answer * (flows[at + 1] > 0)
        gradients[f"{name}.weight"], gradients[f"{name}.bias"] = answer.T @ flows[at], answer.sum(0)
        answer = answer @ parameters[f"{name}.weight"]
    return gradients


def learn(top: Arrays, outputs: np.ndarray, y: np.ndarray) -> tuple[Arrays, np.ndarray]:
    """Return the gradients of the label holder's dense layer `fc`, and of the outputs, by cross-entropy."""
    logits = outputs @ top["fc.weight"].T + top["fc.bias"]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    error = shares / shares.sum(1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    return {"fc.weight": error.T @ outputs, "fc.bias": error.sum(0)}, error @ top["fc.weight"]
