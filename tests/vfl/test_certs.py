"""`cafe certs`, and the checks of a party's own files."""

import datetime
import ipaddress
import shutil
import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from vfl.cli.app import app
from vfl.errors import UserError
from vfl.net.certs import make_certificates, worker_names
from vfl.net.tls import COORDINATOR, is_loopback, load_identity, read_certificate, refuse_plain, role_of, worker_role


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs") / "pki"
    names = {COORDINATOR: ["coordinator.example", "192.0.2.10"], worker_role(1): ["[2001:db8::1]"]}
    make_certificates(folder, 2, names)
    return folder


@pytest.fixture
def own(made, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(made, tmp_path / "own")


def alternative_names(path):
    names = read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    kinds = (x509.DNSName, x509.IPAddress, x509.UniformResourceIdentifier)
    return tuple({str(name) for name in names.get_values_for_type(kind)} for kind in kinds)


def test_one_certificate_a_role_with_its_names_and_keys_for_the_owner_only(made):
    stems = ("ca", "coordinator", "worker-0", "worker-1")
    assert {path.name for path in made.iterdir()} == {f"{stem}{end}" for stem in stems for end in (".pem", ".key")}
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.glob("*.key")} == {0o600}
    everybody = {"127.0.0.1", str(ipaddress.ip_address("::1"))}
    assert alternative_names(made / "coordinator.pem") == (
        {"localhost", "coordinator.example"},
        everybody | {"192.0.2.10"},
        {"urn:cafe:coordinator"},
    )
    assert alternative_names(made / "worker-1.pem") == (
        {"localhost"},
        everybody | {"2001:db8::1"},
        {"urn:cafe:worker:1"},
    )
    assert role_of(read_certificate(made / "worker-0.pem")) == worker_role(0)
    assert role_of(read_certificate(made / "ca.pem")) is None


def test_the_command_makes_certificates_for_four_workers_unless_told(tmp_path):
    assert CliRunner().invoke(app, ["certs", str(tmp_path / "pki")]).exit_code == 0
    stems = ("ca", "coordinator", *(f"worker-{m}" for m in range(4)))
    assert {path.stem for path in (tmp_path / "pki").iterdir()} == {*stems}


def test_each_role_needs_only_its_own_files(made, tmp_path):
    for name in ("ca.pem", "worker-1.pem", "worker-1.key"):
        shutil.copy(made / name, tmp_path)
    identity = load_identity(tmp_path, worker_role(1))
    assert identity.role == worker_role(1)
    assert "PRIVATE" not in repr(identity)


def test_workers_are_added_later_and_nothing_is_overwritten(own):
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    added = make_certificates(own, 3)
    assert {path.name for path in added} == {"worker-2.pem", "worker-2.key"}
    assert {name: (own / name).read_bytes() for name in before} == before
    load_identity(own, worker_role(2))


@pytest.mark.parametrize(
    ("removed", "workers", "names", "words"),
    [
        ([], 2, {}, "has all certificates for 2 workers already, and none is overwritten"),
        ([], 3, {worker_role(0): ["a.example"]}, r"worker-0.pem is there already and keeps its names"),
        (["ca.key"], 3, {}, "ca.pem is there without ca.key"),
        (["worker-1.pem"], 2, {}, "worker-1.key is there without worker-1.pem"),
        (["ca.key", "ca.pem"], 3, {}, "no ca.pem and ca.key that could sign more"),
        ([], 3, {worker_role(3): ["a.example"]}, "there is no worker 3 among 3 workers"),
        ([], 3, {worker_role(2): ["a.example:80"]}, "'a.example:80' is no host name or address"),
    ],
)
def test_what_cannot_be_made_changes_nothing(own, removed, workers, names, words):
    for name in removed:
        (own / name).unlink()
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    with pytest.raises(UserError, match=words):
        make_certificates(own, workers, names)
    assert {path.name: path.read_bytes() for path in own.iterdir()} == before


def test_the_command_names_the_files_it_made(tmp_path):
    arguments = ["certs", str(tmp_path / "c"), "--workers", "1", "--worker-name", "0=w.example", "--days", "3"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert f"{tmp_path / 'c' / 'worker-0.key'}\n" in done.output
    certificate = read_certificate(tmp_path / "c" / "worker-0.pem")
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=2) < left <= datetime.timedelta(days=3)
    with pytest.raises(UserError, match="expected M=HOST"):
        worker_names(["w.example"])


def spoil(folder, kind):
    pem, key = folder / "worker-1.pem", folder / "worker-1.key"
    if kind == "other key":
        shutil.copy(folder / "worker-0.key", key)
    elif kind == "no key":
        key.unlink()
    elif kind == "no pem":
        key.write_text("hello")
    elif kind == "other role":
        shutil.copy(folder / "worker-0.key", key)
        shutil.copy(folder / "worker-0.pem", pem)
    elif kind == "other authority":
        make_certificates(folder / "other", 1)
        shutil.copy(folder / "other" / "ca.pem", folder)
    elif kind == "expired":
        shutil.rmtree(folder)
        make_certificates(folder, 2, days=5, now=datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=9))
    else:
        pem.unlink()
        key.unlink()
        make_certificates(folder, 2, days=5, now=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=9))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("other key", r"worker-1.key is not the key of .*worker-1.pem"),
        ("no key", r"worker-1.key cannot be read: No such file"),
        ("no pem", r"worker-1.key is not a private key in PEM"),
        ("other role", r"worker-1.pem is the certificate of worker 0, not of worker 1"),
        ("other authority", r"worker-1.pem was not signed by .*ca.pem"),
        ("expired", r"worker-1.pem expired on .* UTC"),
        ("not yet", r"worker-1.pem is not valid before .* UTC: is the clock right"),
    ],
)
def test_own_files_that_will_not_do_are_named(own, kind, words):
    spoil(own, kind)
    with pytest.raises(UserError, match=words):
        load_identity(own, worker_role(1))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.0.1:0", "[::1]:7000", "localhost:7000"])
def test_plain_text_may_stay_on_this_machine(address):
    refuse_plain(address, "--listen")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.0.2.10:7000", "localhost.example:7000"])
def test_plain_text_may_not_leave_it(address):
    assert not is_loopback(address)
    with pytest.raises(UserError, match=r"without --tls DIR .* or say --insecure"):
        refuse_plain(address, "--listen")


def test_a_certificate_has_one_role_or_none_and_numbers_are_short():
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "worker")])
    now = datetime.datetime.now(datetime.UTC)
    for named, role in (
        (["worker:7"], worker_role(7)),
        (["coordinator"], COORDINATOR),
        (["worker:0"], worker_role(0)),
        (["worker:007"], None),
        (["worker:00"], None),
        (["worker:+7"], None),
        (["Worker:7"], None),
        (["COORDINATOR"], None),
        (["worker:" + "9" * 5000], None),
        (["worker:0", "worker:1"], None),
        (["coordinator", "worker:1"], None),
        (["worker:1", "coordinator"], None),
        ([], None),
    ):
        builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        for other, found in (("urn:other", role), ("URN:CAFE:worker:3", None)):  # the second in another spelling
            urns = [x509.UniformResourceIdentifier(uri) for uri in (other, *(f"urn:cafe:{one}" for one in named))]
            extension = x509.SubjectAlternativeName(urns)
            assert role_of(builder.add_extension(extension, critical=False).sign(key, hashes.SHA256())) == found


def test_a_key_that_every_user_can_read_gets_a_sentence(own, capsys):
    load_identity(own, worker_role(0))
    (own / "worker-0.key").chmod(0o640)  # a group may be the party's own, as with Kubernetes
    load_identity(own, worker_role(0))
    assert capsys.readouterr().err == ""
    (own / "worker-0.key").chmod(0o644)
    load_identity(own, worker_role(0))
    said = f"{own / 'worker-0.key'} is a key, and every user of this machine can read it (mode 0644): chmod 600"
    assert said in capsys.readouterr().err


def test_a_certificate_of_an_unknown_version_or_with_an_extension_twice_is_refused_or_nobodys(made, tmp_path):
    der = read_certificate(made / "worker-0.pem").public_bytes(serialization.Encoding.DER)
    version = bytes.fromhex("a003020102")  # the third
    path = tmp_path / "other.pem"
    path.write_text(ssl.DER_cert_to_PEM_cert(der.replace(version, version[:-1] + b"\x07", 1)))
    with pytest.raises(UserError, match="is not a certificate in PEM"):
        read_certificate(path)
    key_usage, alternative_name = bytes.fromhex("0603551d0f"), bytes.fromhex("0603551d11")
    path.write_text(ssl.DER_cert_to_PEM_cert(der.replace(key_usage, alternative_name, 1)))
    assert role_of(read_certificate(path)) is None
