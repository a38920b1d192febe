"""Every limit on what a party takes from others or from a file, and on how long it waits for them.

SECURITY.md lists them with their reasons. A run itself often sets a lower limit: an upload is never larger than the
model, an output never longer than the data set.
"""

MESSAGE_BYTES = 4 << 20
"""The largest message either side accepts; a chunk or a bundle's announcement never comes near it."""
CHUNK_BYTES = 7 << 19
"""Bytes in a chunk: below a message's limit, large enough that the cost of a message vanishes."""
TENSORS = 10_000
DIMENSIONS = 8
ELEMENTS = 1 << 40
"""What a bundle may announce: tensors, dimensions of one, and its elements, counting an empty dimension as 1."""
NAME_CHARACTERS = 256
"""Names of tensors, addresses, sessions."""
SENTENCE_CHARACTERS = 1_000
"""What another party says in words; the rest is cut off."""

OUTPUT_BYTES = 256 << 20
"""The largest output of one worker that the label holder accepts."""
PARAMETER_BYTES = 16 << 30
"""The largest model that a worker makes room for."""
LARGEST_PARAMETER = 1_000_000
"""The largest value, either way, that a worker computes with as a parameter."""
SAMPLES = 100_000_000
CLASSES = 1_000_000
FEATURES = 1 << 30
"""What a joining worker may claim, and a data set hold; memory grows with each."""
PRIVATE_IDS = 1_000_000
PRIVATE_BYTES = 40 * PRIVATE_IDS
"""Ids that a worker may bring to a private intersection; in a message each is a point of the curve and its framing."""
IDS = 10_000_000
"""Ids that a worker may bring to be aligned, 16 bytes of memory each."""
ALIGN_BYTES = 2 << 30
"""What the hashes of all workers that are being aligned may take together."""

WAITING_BYTES = 4_000_000_000
"""What waits on disk for an attack that cannot keep up, if the config's `waiting_gb` says nothing else."""

SPARE_CONNECTIONS = 64
"""Connections that a party accepts at once beyond two for each worker."""
STREAMS = 8
"""Calls at once over one connection; a worker has two or three."""

HANDSHAKE_SECONDS = 20.0
"""How long a party that connects may take to begin to speak gRPC."""
IDLE_SECONDS = 300.0
"""How long a connection may stay without a call."""
FIRST_SECONDS = 20.0
MESSAGE_SECONDS = 60.0
"""How long a call's first message may take, and each further one."""
RECEIVE_SECONDS = 60.0
"""How long a peer may take to send its whole output."""
OPEN_SECONDS = 10.0
"""How long a peer waits for a label holder that has not had its start yet."""
REACH_SECONDS = 20.0
"""How long a worker tries to reach the label holder before it fails; less if `round_timeout` is short."""
ANSWER_SECONDS = 10.0
"""How long a party that accepted a connection may take to send its first bytes."""
WELCOME_SECONDS = 60.0
"""How long a coordinator may take to answer a worker that asks to join."""
TROUBLE_SECONDS = 5.0
"""How long a worker tries to report its trouble to the coordinator."""
ORDER_SECONDS = 86_400.0
"""How long a coordinator may send no order, beyond all waits in the config: a run can be paused for a day."""
DOWNLOAD_SECONDS = 60.0
"""How long a download of a data set may receive nothing."""

CONFIG_BYTES = 1 << 18
CONFIG_DEPTH = 32
"""The size of a YAML file, and how deep it may nest. Aliases are not read at all."""
JSON_BYTES = 64 << 20
"""The largest JSON file that is read."""
LINE_BYTES = 1 << 20
JOURNAL_BYTES = 4 << 20
"""The longest line of a journal that is read, and how much of a journal is taken in at once."""
PEM_BYTES = 1 << 20
"""The largest certificate, key, or file with a secret."""
ARCHIVE_BYTES = 8 << 30
"""What the arrays that are read from an .npz archive may take when they are unpacked."""
RESULT_BYTES = 2 << 30
"""What the arrays of a run's results may take, and a sixth of the free memory at most."""
PICTURES = 16
PICTURE_PIXELS = 8_000_000
"""How many photographs of a run's folder are shown, and of how many pixels all of them together, or one sample."""
TABLE_BYTES = 4 << 30
TABLE_COLUMNS = 100_000
"""What a table may take when it is read (a CSV file as it is, Parquet unpacked, 8 bytes a value at least), and how wide
it may be."""

MOST_TRIES = 10
"""How often one round is begun anew before the run ends."""
MOST_REASONS = 20
LONGEST_REASON = 500
"""How many of the workers' reasons why a round cannot go on are kept, and how many characters of each."""
RESERVE_BYTES = 2 << 30
"""Bytes of the disk that rounds waiting for an attack leave free."""
BROWSERS = 16
"""How many browsers may watch a run at once."""

LOOK_SECONDS = 3.0
"""How long plain text stays unanswered before the party checks whether TLS is expected there."""
CONNECT_SECONDS = 5.0
PROOF_SECONDS = 10.0
CALL_SECONDS = 30.0
ECHO_SECONDS = 120.0
"""`cafe doctor`: how long a port may take to accept a connection, and the party there to prove itself, to answer a
call, and to send the largest message back."""
FINDINGS = 1_000
"""Findings in one worker's report to `cafe doctor --wait`."""


def plain(text: str) -> str:
    """Return another party's words as one line that can be shown: no control characters, and not too long."""
    line = "".join(one if one.isprintable() else " " for one in text[: SENTENCE_CHARACTERS + 1])
    return line if len(line) <= SENTENCE_CHARACTERS else line[: SENTENCE_CHARACTERS - 1] + "…"
