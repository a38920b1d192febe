"""A company of a server with the head: it sends outputs, and steps its own network when their gradients come back."""

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from vertical.client_app import held
from vertical.messages import arrays, record
from vertical.network import backward, forward

app = ClientApp()


@app.query()
def embed(message: Message, context: Context) -> Message:
    """Send who this is, and the outputs of a batch once there is one."""
    own = held(context)
    sent = {"party": own["party"]}
    if "asked" in message.content:
        sent["output"] = flows_of(message, context)[-1]
    return Message(RecordDict({"sent": record(sent)}), reply_to=message)


@app.train()
def learn_from(message: Message, context: Context) -> Message:
    """Step this company's network; nothing but that it is done goes back."""
    bottom, lr = bottom_of(context), np.float32(context.run_config["lr"])
    gradients = backward(bottom, flows_of(message, context), arrays(message, "asked")["answer"])
    context.state["bottom"] = record({name: one - lr * gradients[name] for name, one in bottom.items()})
    return Message(RecordDict({"done": ConfigRecord({"done": True})}), reply_to=message)


def bottom_of(context: Context) -> dict[str, np.ndarray]:
    """Return this company's network, which nobody else has: as it is after the last step, or from its own file."""
    if "bottom" in context.state:
        return {name: one.numpy() for name, one in context.state["bottom"].items()}
    return {name.removeprefix("bottom."): one for name, one in held(context).items() if name.startswith("bottom.")}


def flows_of(message: Message, context: Context) -> list[np.ndarray]:
    """Return what this company's network makes of its columns of the batch."""
    return forward(bottom_of(context), held(context)["x"][arrays(message, "asked")["indices"]])
