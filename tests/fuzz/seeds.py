"""Writes the corpus anew (`python -m tests.fuzz.seeds`): each seed is valid, or broken in the way its name says."""

import io
import json
import pickle
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from google.protobuf.message import Message

from protos.alignment_pb2 import AlignHeader, AlignPart, PassHeader, PassPart, PlaceRequest
from protos.codec import announce
from protos.coordinator_pb2 import (
    Abort,
    End,
    Evaluation,
    JoinRequest,
    Order,
    Parameters,
    Purpose,
    Round,
    Slice,
    Start,
    Trouble,
    UploadHeader,
    UploadPart,
    Welcome,
)
from protos.doctor_pb2 import Block, CompareReply, CompareRequest, Finding, Party, ReportRequest
from protos.tensors_pb2 import Bundle, Chunk, TensorSpec
from protos.worker_pb2 import SwapHeader, SwapPart
from server.checkpoint import Known, State
from tests.fuzz.support import CORPUS
from tests.fuzz.table_seeds import CSV, parquets
from tests.support import small_config
from vfl.datasets.slices import load_data, slice_for
from vfl.folder.record import Record
from vfl.folder.summary import Train
from vfl.folder.transcript import TranscriptWriter
from vfl.models.whole import first_model
from vfl.net.certs import make_certificates
from vfl.observation import ModelTensors, Observation, Setting
from vfl.partition import partition

WIDE = (1 << 64) - 1
TENSORS = {"bottom.1.weight": torch.ones(3, 4), "bottom.1.bias": torch.zeros(3)}


def bundles() -> dict[str, Bundle]:
    return {
        "good": announce(TENSORS),
        "empty": Bundle(),
        "ten_gigabytes": Bundle(tensors=[TensorSpec(name="bottom.1.weight", dtype=1, shape=[2_500_000_000])]),
        "endless": Bundle(tensors=[TensorSpec(name="output", dtype=1, shape=[WIDE] * 40)]),
        "empty_and_endless": Bundle(tensors=[TensorSpec(name="output", dtype=1, shape=[0, WIDE, WIDE])]),
        "twice": Bundle(tensors=[TensorSpec(name="output", dtype=1, shape=[1])] * 2),
        "odd_dtype": Bundle(tensors=[TensorSpec(name="output", dtype=99, shape=[1])]),
        "odd_name": Bundle(tensors=[TensorSpec(name="../\x1b[2J" + "x" * 300, dtype=1, shape=[1])]),
    }


def messages() -> dict[str, dict[str, bytes]]:
    half = Slice(sample_shape=[8], start=[4], stop=[8])
    good = JoinRequest(protocol_version=3, worker=1, slice=half, samples=12, ids_digest=b"same", peer_address="h:1")
    joins = {"good": good, "many_dimensions": JoinRequest(), "long_texts": JoinRequest()}
    joins["many_dimensions"].CopyFrom(good)
    joins["many_dimensions"].slice.sample_shape[:] = [WIDE] * 500
    joins["long_texts"].CopyFrom(good)
    joins["long_texts"].peer_address = "\x1b]0;x\x07" * 500
    uploads = {
        name: UploadPart(header=UploadHeader(session="s", worker=1, round=1, gradients=bundle, loss=1.0, run_id="r"))
        for name, bundle in bundles().items()
    }
    uploads["withheld"] = UploadPart(header=UploadHeader(session="s", worker=1, round=1, withheld="no\x1b[31m"))
    uploads["chunk"] = UploadPart(chunk=Chunk(offset=48, data=bytes(range(64))))
    swaps = {
        name: SwapPart(header=SwapHeader(run_id="run", worker=1, round=1, bundle=bundle))
        for name, bundle in bundles().items()
    }
    swaps["gradient"] = SwapPart(
        header=SwapHeader(run_id="run", worker=1, round=1, bundle=announce({"gradient": torch.ones(5, 3)}))
    )
    swaps["chunk"] = SwapPart(chunk=Chunk(offset=0, data=bytes(60)))
    swaps["output"] = SwapPart(
        header=SwapHeader(run_id="run", worker=1, round=1, bundle=announce({"output": torch.ones(5, 3)}))
    )
    orders = {
        "welcome": Order(welcome=Welcome(session="s", protocol_version=3)),
        "start": Order(start=Start(run_id="r", workers=4, classes=10, output_widths=[16] * 4)),
        "parameters": Order(parameters=Parameters(version=1, bundle=announce(TENSORS))),
        "endless": Order(parameters=Parameters(version=1, bundle=bundles()["endless"])),
        "chunk": Order(chunk=Chunk(offset=0, data=bytes(64))),
        "round": Order(round=Round(round=1, purpose=Purpose.PURPOSE_TRAIN, indices=[0, 5, 23])),
        "end": Order(end=End(rounds=3)),
        "abort": Order(abort=Abort(reason="because\r\nof this")),
    }
    reports = {
        "evaluation": Evaluation(session="s", round=4, correct=3, total=5, loss_sum=float("nan")),
        "trouble": Trouble(session="s", run_id="r", reason="cannot \x1b[1m go on", leaving=True),
    }
    kinds = {"join": joins, "upload": uploads, "swap": swaps, "order": orders, "report": reports}
    kinds |= {"doctor": consultations(good), **alignment()}
    return {kind: {name: one.SerializeToString() for name, one in some.items()} for kind, some in kinds.items()}


def alignment() -> dict[str, dict[str, Message]]:
    """What workers that bring tables send, and are answered."""
    hashes = AlignPart(hashes=bytes(range(48)))
    aligns = {
        name: AlignPart(header=AlignHeader(protocol_version=3, worker=1, ids=ids))
        for name, ids in {"header": 3, "endless": WIDE, "nothing": 0, "most": 10_000_000}.items()
    }
    passes = {
        name: PassPart(header=PassHeader(protocol_version=3, worker=1, step=0, bytes=size))
        for name, size in {"header": 48, "endless": WIDE, "most": 40_000_000}.items()
    }
    places = {
        name: PlaceRequest(worker=1, features=features) for name, features in {"good": 4, "endless": WIDE}.items()
    }
    return {
        "align": {**aligns, "hashes": hashes},
        "pass": {**passes, "data": PassPart(data=bytes(range(48)))},
        "place": places,
        "placed": {"good": Slice(sample_shape=[8], start=[4], stop=[8]), "endless": Slice(sample_shape=[WIDE] * 500)},
    }


def consultations(join: JoinRequest) -> dict[str, Message]:
    """What `cafe doctor` sends, and is answered."""
    party = Party(versions={"torch": "2"}, settings={"seed": "3"}, time=1.0e9)
    return {
        "compare": CompareRequest(worker=1, party=party, join=join, address="h:1"),
        "odd_address": CompareRequest(worker=0, party=party, address="\x1b]0;x\x07" * 500),
        "reply": CompareReply(party=party, refusal="no\x1b[2J" * 500, label_holder_address="h:1"),
        "odd_time": CompareReply(party=Party(versions={"\x1b[1m": "x" * 5000}, time=float("nan"))),
        "block": Block(worker=1, data=bytes(64)),
        "report": ReportRequest(worker=1, findings=[Finding(check="join", level="ok", text="well")]),
        "odd_report": ReportRequest(
            worker=1, findings=[Finding(check="\n" * 99, level="ok", text="\x1b[2J" * 400)] * 3
        ),
    }


def npy(array: np.ndarray, pickled: bool = False) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=pickled)
    return file.getvalue()


def lying(shape: str) -> bytes:
    """An array's header with nothing behind it."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def archive(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, data in members.items():
            made.writestr(zipfile.ZipInfo(f"{name}.npy"), data, compression)
    return file.getvalue()


class Touch:
    """What a pickle can do: a call of any function."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


def archives() -> dict[str, bytes]:
    x, y = npy(np.arange(24, dtype=np.float32).reshape(4, 6)), npy(np.array([0, 1, 0, 1]))
    evil = np.array([Touch("pickle-was-run")], dtype=object)
    bare = pickle.dumps(Touch("pickle-was-run"))
    return {
        "table": archive(zipfile.ZIP_DEFLATED, x=x, y=y, ids=npy(np.array(["a", "b", "c", "d"]))),
        "images": archive(x_train=npy(np.zeros((2, 4, 4), np.uint8)), y_train=npy(np.array([0, 1]))),
        "pickle": archive(x=npy(evil, pickled=True), y=y),
        "bare_pickle": archive(x=bare, y=y),
        "terabytes": archive(x=lying("(1000000000000,)"), y=y),
        "beyond_64_bits": archive(x=lying("(9999999999, 9999999999, 9999)"), y=y),
        "negative": archive(x=lying("(-5, 3)"), y=y),
        "bomb": archive(zipfile.ZIP_DEFLATED, x=lying("(1024, 1024)") + bytes(8 << 20), y=y),
        "big_endian": archive(x=npy(np.ones((4, 6), ">f8")), y=npy(np.array([0, 1, 0, 1], ">i4"))),
        "complex": archive(x=npy(np.ones((4, 6), complex)), y=y),
        "large_label": archive(x=x, y=npy(np.array([0, 1, 0, 1 << 62]))),
        "outside": archive(**{"../../x": x, "y": y}),
        "single": x,
        "estimate": archive(x=npy(np.full((2, 1, 4, 4), 0.5, np.float32)), cell=npy(np.arange(2))),
    }


CONFIGS = {
    "good": "data: {name: digits}\nfederation: {workers: 2, batch_size: 4, rounds: 3}\n",
    "laughs": "\n".join(
        ["a: &a [x, x]", *(f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))]
    ),
    "merges": "a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: {<<: [*b, *b]}\n",
    "itself": "a: &a [*a]\n",
    "deep": "a: " + "[" * 3000,
    "huge_number": "seed: " + "9" * 5000,
    "huge_hex": "seed: 0x" + "f" * 5000,
    "no_date": "seed: 2001-99-99\n",
    "python": "seed: !!python/object/apply:os.system [true]\n",
    "outside": "data: {name: ../../etc/x}\nfederation: {batch_size: 4, rounds: 1}\n",
    "binary": "\x00\x01\x02",
}


def slices() -> dict[str, bytes]:
    config = small_config()
    data = load_data(config)
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for worker in (0, 1):
            slice_for(data, config, worker).save(Path(folder) / "slice")
            made[f"worker_{worker}"] = (Path(folder) / "slice").read_bytes()
    return made


def transcript() -> dict[str, bytes]:
    """The files of a transcript of one round."""
    config = small_config()
    boxes = tuple(partition((1, 8, 8), 4))
    setting = Setting(config.model, boxes, 10, 24, 8, "epochs", 1, True, 3)
    model = first_model(setting)
    parts = [{name: one.detach() for name, one in part.named_parameters()} for part in (*model.bottoms, model.top)]
    tensors = ModelTensors(tuple(parts[:-1]), parts[-1])
    with tempfile.TemporaryDirectory() as folder:
        TranscriptWriter(Path(folder), config, setting).observe(Observation(1, torch.arange(8), 1, tensors, tensors))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def state() -> bytes:
    """What a checkpoint says besides its tensors."""
    record = Record(rounds=2, train=Train(losses=[1.0, 0.5], rates=[0.1, 0.1]), ends=[0.1, 0.2], memory=[1, 1])
    boxes = tuple(partition((1, 8, 8), 4))
    whole = State(
        config=small_config().model_dump(mode="json"),
        held=("a", "b", "c", "d"),
        known=Known(boxes=boxes, classes=10, samples=24, shares=(), tested=False),
        generations={1: 2},
        version=3,
        drawn="digest",
        at=1.0,
        seconds=1.0,
        record=record,
        bytes_up={0: 9},
        bytes_down={0: 9},
    )
    return whole.model_dump_json().encode()


def write(kind: str, files: dict[str, bytes]) -> None:
    (CORPUS / kind).mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (CORPUS / kind / name).write_bytes(data)


def main() -> None:
    for kind, files in messages().items():
        write(kind, files)
    write("npz", archives())
    write("config", {name: text.encode() for name, text in CONFIGS.items()})
    write("slice", slices())
    write("csv", CSV)
    write("parquet", parquets())
    files = transcript()
    write("meta", {"good": json.dumps(json.loads(files.pop("meta.json"))).encode()})
    write("transcript", files)
    write("state", {"good": state()})
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder) / "certs", 1)
        write("pem", {path.name: path.read_bytes() for path in (Path(folder) / "certs").glob("*.pem")})


if __name__ == "__main__":
    main()
