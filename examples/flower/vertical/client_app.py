"""A company: it has some columns, the first company the labels too; parameters come with every message."""

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from vertical.messages import arrays, record
from vertical.network import backward, forward, learn

app = ClientApp()


@app.query()
def embed(message: Message, context: Context) -> Message:
    """Send who this is, and the outputs of a batch once there is one."""
    own = held(context)
    sent = {"party": own["party"]}
    if "asked" in message.content:
        flows = forward(bottom_of(message, own), rows_of(message, own))
        sent["output"] = flows[-1]
    return Message(RecordDict({"sent": record(sent)}), reply_to=message)


@app.train()
def learn_from(message: Message, context: Context) -> Message:
    """Send gradients: the label holder of the top network too, with the answers to the others' outputs."""
    own, asked = held(context), arrays(message, "asked")
    bottom = bottom_of(message, own)
    flows = forward(bottom, rows_of(message, own))
    sent = {}
    if "y" in own:
        outputs = [flows[-1], *(asked[name] for name in sorted(asked) if name.startswith("output"))]
        top, answers = learn(arrays(message, "top"), np.concatenate(outputs, axis=1), own["y"][asked["indices"]])
        sent["top"] = record(top)
        answer = answers[:, : flows[-1].shape[1]]
        sent["answers"] = record({"answer": answers[:, flows[-1].shape[1] :]})
    else:
        answer = asked["answer"]
    sent["bottom"] = record(backward(bottom, flows, answer))
    return Message(RecordDict(sent), reply_to=message)


def held(context: Context) -> dict[str, np.ndarray]:
    """Return what this company has: a file that nobody else reads."""
    return dict(np.load(str(context.node_config["data"])))


def bottom_of(message: Message, own: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the parameters of this company's network."""
    return arrays(message, f"bottom {int(own['party'])}")


def rows_of(message: Message, own: dict[str, np.ndarray]) -> np.ndarray:
    """Return this company's columns of the batch."""
    return own["x"][arrays(message, "asked")["indices"]]
