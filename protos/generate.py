"""Write the messages' modules from the `.proto` files: `python -m protos.generate [DIRECTORY]`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def generate(target: Path) -> None:
    """Generate the messages and their types under `target`/protos."""
    from grpc_tools import protoc

    names = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").glob("*.proto"))
    arguments = [f"-I{ROOT}", f"--python_out={target}", f"--pyi_out={target}"]
    if protoc.main(["protoc", *arguments, *names]) != 0:
        raise SystemExit("protoc refused the .proto files; its words are above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
