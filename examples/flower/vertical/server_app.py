"""The server: it has the parameters, draws the batches, receives gradients, and records them."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from vertical.messages import arrays, record
from vertical.write_transcript import Transcript

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the batches that `start.npz` lists, from its parameters, by plain gradient descent."""
    folder, lr = Path(str(context.run_config["folder"])), float(context.run_config["lr"])
    start = dict(np.load(folder / "start.npz"))
    about = json.loads((folder / "about.json").read_text())
    batches = start.pop("batches")
    nodes = companies(grid, about["config"]["federation"]["workers"])
    recording, began = 0.0, time.perf_counter()
    with Transcript(folder / "transcript", about["config"], about["setting"]) as transcript:  # the recorder
        for number, indices in enumerate(batches, start=1):
            bottoms, top = split(start, len(nodes))
            gradients, top_gradients = one_round(grid, nodes, indices, bottoms, top)
            begin = time.perf_counter()
            transcript.parameters(number, bottoms, top)
            transcript.round(number, number, gradients, top_gradients, indices=indices)
            recording += time.perf_counter() - begin
            step = {f"{party}.bottom.{name}": one for party, own in enumerate(gradients) for name, one in own.items()}
            step |= {f"top.{name}": one for name, one in top_gradients.items()}
            start = {name: one - np.float32(lr) * step[name] for name, one in start.items()}
    took = {"seconds": time.perf_counter() - began, "seconds_recording": recording}
    (folder / "done.json").write_text(json.dumps({"rounds": len(batches), **took}))


def companies(grid: Grid, count: int) -> dict[int, int]:
    """Wait for all companies; return the node of each."""
    nodes: list[int] = []
    while len(nodes) < count:
        time.sleep(0.5)
        nodes = list(grid.get_node_ids())
    replies = ask(grid, "query", dict.fromkeys(nodes, RecordDict()))
    return {arrays(reply, "sent")["party"].item(): node for node, reply in replies.items()}


def one_round(grid, nodes, indices, bottoms, top):
    """Return the gradients of every company's network and of the top one; outputs and answers go through here."""
    asked = {"indices": np.asarray(indices)}

    def content(party: int, **more: np.ndarray) -> RecordDict:
        sent = {"asked": record({**asked, **more}), f"bottom {party}": record(bottoms[party])}
        return RecordDict({**sent, **({"top": record(top)} if party == 0 else {})})

    others = sorted(set(nodes) - {0})
    replies = ask(grid, "query", {nodes[party]: content(party) for party in others})
    outputs = {f"output {party}": arrays(replies[nodes[party]], "sent")["output"] for party in others}
    first = ask(grid, "train", {nodes[0]: content(0, **outputs)})[nodes[0]]
    widths = np.cumsum([one.shape[1] for one in outputs.values()])
    answers = np.split(arrays(first, "answers")["answer"], widths[:-1], axis=1)
    told = {nodes[p]: content(p, answer=answer) for p, answer in zip(others, answers, strict=True)}
    rest = ask(grid, "train", told)
    gradients = [arrays(first, "bottom"), *(arrays(rest[nodes[party]], "bottom") for party in others)]
    return gradients, arrays(first, "top")


def ask(grid: Grid, kind: str, contents: dict[int, RecordDict]) -> dict[int, Message]:
    """Send a message to each node, and return what each replies."""
    messages = [Message(content, dst_node_id=node, message_type=kind) for node, content in contents.items()]
    replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(messages)}
    for reply in replies.values():
        if reply.has_error():
            raise RuntimeError(f"a company failed: {reply.error}")
    return replies


def split(named: dict[str, np.ndarray], count: int) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return the companies' parameters, and the top network's, under their own names."""

    def under(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): one for name, one in named.items() if name.startswith(prefix)}

    return [under(f"{party}.bottom.") for party in range(count)], under("top.")
