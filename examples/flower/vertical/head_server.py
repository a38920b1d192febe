"""A server with the labels and the head, as in Flower's own vertical example: outputs come, gradients go back."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from vertical.messages import arrays, record
from vertical.network import learn
from vertical.server_app import ask, companies
from vertical.write_transcript import Transcript

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the head for the batches that `start.npz` lists; the companies train their own networks."""
    folder, lr = Path(str(context.run_config["folder"])), np.float32(context.run_config["lr"])
    start = dict(np.load(folder / "start.npz"))
    about = json.loads((folder / "about.json").read_text())
    batches, y = start["batches"], np.asarray(about["setting"]["labels"])
    top = {name.removeprefix("top."): one for name, one in start.items() if name.startswith("top.")}
    nodes = companies(grid, len(about["setting"]["boxes"]))
    recording, began = 0.0, time.perf_counter()
    with Transcript(folder / "transcript", about["config"], about["setting"]) as transcript:  # the recorder
        transcript.known(start["known"])
        for number, indices in enumerate(batches, start=1):
            asked = {"indices": indices}
            replies = ask(grid, "query", {node: RecordDict({"asked": record(asked)}) for node in nodes.values()})
            outputs = [arrays(replies[nodes[party]], "sent")["output"] for party in sorted(nodes)]
            gradients, answer = learn(top, np.concatenate(outputs, axis=1), y[indices])
            answers = np.split(answer, np.cumsum([one.shape[1] for one in outputs])[:-1], axis=1)
            begin = time.perf_counter()
            transcript.parameters(number, [], top)
            transcript.outputs(number, number, outputs, answers, gradients, indices)
            recording += time.perf_counter() - begin
            told = zip(sorted(nodes), answers, strict=True)
            ask(grid, "train", {nodes[p]: RecordDict({"asked": record({**asked, "answer": one})}) for p, one in told})
            top = {name: one - lr * gradients[name] for name, one in top.items()}
    took = {"seconds": time.perf_counter() - began, "seconds_recording": recording}
    (folder / "done.json").write_text(json.dumps({"rounds": len(batches), **took}))
