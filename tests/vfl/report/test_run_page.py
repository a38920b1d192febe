"""A run's report, of folders that were written here: what it shows, how large it is, and what it does without."""

import json

import pytest
import torch

from tests.vfl.report.made import Page, config_of, images, record_of, setting_of, write_run
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.folder.record import write_summary
from vfl.folder.schema import as_json
from vfl.folder.summary import load_summary
from vfl.folder.versions import made_with
from vfl.maths.metrics import psnr
from vfl.report.main import report_if_possible, write_report

MEGABYTE = 1_000_000
HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)> $\\frac{ & \" '"


def page_of(folder) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


def pictures(page: Page) -> list[str]:
    return [image["alt"] for image in page.all("img")]


def wall(page: Page) -> list[str]:
    """What the images of the wall are called; each of the twelve examples has three pictures before them."""
    return [alt for alt in pictures(page) if "rebuilt" in alt and "difference" not in alt]


def section(page: Page, name: str) -> bool:
    return any(attributes.get("id") == name for attributes in page.all("section"))


def test_the_numbers_are_those_of_the_summary(tmp_path):
    write_run(tmp_path, config_of(), images(24))
    page, summary = page_of(tmp_path), as_json(load_summary(tmp_path))
    shown = {data["data-key"]: data["value"] for data in page.all("data")}
    assert {"attack.psnr_mean", "attack.psnr_min", "attack.share_30db", "attack.certified", "seed"} <= shown.keys()
    for key, value in shown.items():
        tree = summary
        for part in key.split("."):
            tree = tree[part]
        assert float(value) == tree, key
    assert f"{summary['attack']['psnr_mean']:.1f} dB" in page.text
    assert "The coordinator rebuilt 24 of 24 images (30 dB or better) from 12 rounds of gradients." in page.text
    assert "23 of 24 samples are certified" in page.text
    assert "gradients of 3 of 12 rounds (1 to 3), their parameters (the same in all of them)" in page.text
    assert summary["versions"] == made_with()
    assert all(version in page.text for version in made_with().values())
    assert "1.23 MB up to the coordinator" in page.text


def test_best_typical_and_worst_are_what_their_psnr_says(tmp_path):
    data = images(30)
    x = data.x + torch.linspace(0.001, 0.3, 30).reshape(-1, 1, 1, 1) * torch.randn_like(data.x)
    write_run(tmp_path, config_of(), data, x)
    each = psnr(x, data.x)
    expected = each.argsort(descending=True).tolist()
    names = [int(alt.split(",")[0].removeprefix("Sample ")) for alt in pictures(page_of(tmp_path)) if "real" in alt]
    assert names[::2] == [*expected[:4], *expected[13:17], *reversed(expected[-4:])]
    assert f"Sample {expected[0]}, rebuilt, {each.max():.1f} dB" in pictures(page_of(tmp_path))


def test_eight_hundred_images_of_noise_fit_into_five_megabytes(tmp_path):
    write_run(tmp_path, config_of(), images(800, 3, 32))
    path = write_report(tmp_path)
    assert path.stat().st_size < 5 * MEGABYTE
    page = Page(path.read_text(encoding="utf-8"))
    assert "All 800 rebuilt images" in page.text
    assert len(wall(page)) == 800 + 12


def test_images_that_are_too_large_together_are_an_even_sample_and_the_page_says_so(tmp_path):
    write_run(tmp_path, config_of(), images(300, 3, 64))
    path = write_report(tmp_path)
    assert path.stat().st_size < 5 * MEGABYTE
    page = Page(path.read_text(encoding="utf-8"))
    shown = len(wall(page)) - 12
    assert 100 < shown < 300
    assert f"{shown} of 300 rebuilt images" in page.text
    assert "An even sample" in page.text


def test_without_the_truth_the_images_are_shown_and_nothing_is_scored(tmp_path):
    write_run(tmp_path, config_of(), images(24), scored=False)
    page = page_of(tmp_path)
    assert "The attack's result is not scored" in page.text
    assert "All 24 rebuilt images" in page.text
    assert "from the best certificate to the worst" in page.text
    assert len(pictures(page)) == 24
    assert "23 of 24" in page.text
    assert "PSNR" not in page.text


def test_samples_that_were_lost_are_grey_and_called_so(tmp_path):
    data = images(12)
    x = data.x.clone()
    x[3] = torch.nan
    write_run(tmp_path, config_of(), data, x, scored=False)
    assert "Sample 3, rebuilt, not or not wholly recovered" in pictures(page_of(tmp_path))
    write_run(tmp_path, config_of(), data, x)
    assert "1 were not recovered and are grey" in page_of(tmp_path).text


def test_a_run_without_an_attack_shows_its_training(tmp_path):
    config = config_of(attack={"name": "none"}, training={"lr": 0.1})
    write_summary(tmp_path, config, setting_of(config, images(12)), record_of())
    page = page_of(tmp_path)
    assert "No attack was run." in page.text
    assert not pictures(page)
    plots = [svg["aria-label"] for svg in page.all("svg")]
    assert [label.split(" over")[0].split(",")[0] for label in plots] == [
        "Training loss",
        "Test accuracy",
        "Learning rate",
    ]
    assert "Test accuracy, from 50.0% to 75.0%." in plots
    assert "75.0%" in page.text


def test_a_run_that_failed_says_why_also_before_anybody_joined(tmp_path):
    write_summary(tmp_path, config_of(), None, record_of(0, losses=[], evaluations=[], rates=[]), ended="worker 2 left")
    page = page_of(tmp_path)
    assert "This run did not come to its end: worker 2 left" in page.text
    assert section(page, "reproduce")
    assert not section(page, "training")


def test_losses_that_are_no_numbers_are_counted(tmp_path):
    nan = float("nan")
    write_summary(tmp_path, config_of(), None, record_of(4, losses=[1.0, nan, 0.5, nan]))
    assert "2 rounds have a loss that is not a number." in page_of(tmp_path).text
    write_summary(tmp_path, config_of(), None, record_of(2, losses=[nan, nan], evaluations=[]))
    assert "No round has a loss that is a number." in page_of(tmp_path).text


def test_only_representations(tmp_path):
    config, data = config_of(model={"name": "mlp", "hidden": [5]}), images(12)
    inner = tuple(torch.rand(12, 16) for _ in range(4))
    write_run(tmp_path, config, data, slices=None, representations=inner, layers=("net.1",) * 4, scored=False)
    page = page_of(tmp_path)
    assert not pictures(page)
    assert "Certificates" in page.text


def test_withheld_uploads_altered_rounds_and_disturbances_are_told(tmp_path):
    write_run(tmp_path, config_of(), images(12), altered=(0.0, 0.25, 0.0, 1.0))
    summary = as_json(load_summary(tmp_path))
    trouble = {"round": 3, "reasons": ["worker 1 was lost"], "seconds": 2.5, "redone": None}
    shield = {"worker": 0, "chain": [{"name": "dp", "epsilon": 1.5, "warning": "too few"}]}
    more = {"withheld": {"2": 9}, "disturbances": [trouble], "defence": [shield]}
    (tmp_path / "summary.json").write_text(json.dumps(summary | more))
    text = page_of(tmp_path).text
    assert "worker 2 uploaded nothing from round 9 on" in text
    assert "from round 9" in text
    assert "25%" in text
    assert "round 3: worker 1 was lost (2.5 s)" in text
    assert "epsilon 1.5" in text


def test_a_defence_whose_draws_follow_from_the_seed_is_never_said_to_hold(tmp_path):
    data = images(12)
    write_run(tmp_path, config_of(), data, torch.zeros_like(data.x))
    summary = as_json(load_summary(tmp_path))
    assert "no more than a guess" in page_of(tmp_path).text
    report = {"worker": 0, "chain": [{"name": "noise"}], "warning": "NOT TESTED FOR REAL: draws follow from the seed"}
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"defence": [report]}))
    text = page_of(tmp_path).text
    assert "defence not tested for real" in text
    assert text.count("NOT TESTED FOR REAL") == 2  # above everything, and beside the defence
    assert "no more than a guess" not in text


def test_psnr_over_the_rounds(tmp_path):
    write_run(tmp_path, config_of(), images(12))
    summary = as_json(load_summary(tmp_path))
    steps = [{"round": 4, "seconds": 1.0, "psnr_mean": 11.5}, {"round": 8, "seconds": 2.0, "psnr_mean": 33.25}]
    summary["attack"]["over_rounds"] = steps
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    labels = [svg["aria-label"] for svg in page_of(tmp_path).all("svg")]
    assert "PSNR over the rounds: 11.5 after round 4, 33.2 after round 8." in labels


def test_the_map_tells_the_worker_that_kept_its_part(tmp_path):
    data, config = images(12), config_of()
    x = data.x.clone()
    setting_of(config, data).boxes[2].paste(x, torch.full((12, 1, 4, 4), 0.5))
    write_run(tmp_path, config, data, x)
    (label,) = (svg["aria-label"] for svg in page_of(tmp_path).all("svg") if "Map" in svg["aria-label"])
    assert "worker 1: 100.0 dB" in label
    kept = psnr(torch.full((12, 1, 4, 4), 0.5), data.x[:, :, 4:, :4]).mean()
    assert f"worker 2: {kept:.1f} dB" in label


def test_rows_of_a_table_stand_beside_the_real_ones(tmp_path):
    config = config_of(data={"name": "breast_cancer", "samples": 20}, model={"name": "mlp", "hidden": [8]})
    data = load_data(config)
    x = data.x.clone()
    x[0, 0] += 3.0
    write_run(tmp_path, config, data, x)
    page = page_of(tmp_path)
    assert "The coordinator rebuilt 19 of 20 rows exactly" in page.text
    assert "Real rows, and the same rows rebuilt" in page.text
    assert "mean radius" in page.text
    assert len([cell for cell in page.all("td") if cell.get("class") == "wrong"]) == 1
    assert any("What leaked of 30 columns" in svg["aria-label"] for svg in page.all("svg"))


def test_nothing_in_a_summary_becomes_markup(tmp_path):
    write_run(tmp_path, config_of(), images(12), notes=(HOSTILE,))
    summary = as_json(load_summary(tmp_path))
    summary["config"]["data"]["name"] = HOSTILE
    summary["attack"]["name"] = summary["ended"] = HOSTILE
    summary["attack"]["columns"] = [{"name": HOSTILE, "worker": 0, "r2": 0.5}]
    summary["defence"] = [{"worker": 0, "chain": [{"name": HOSTILE}]}]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    page = page_of(tmp_path)
    assert not page.all("script")
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert page.text.count("<script>alert(1)</script>") >= 5


def test_parts_of_two_plots_never_have_the_same_name(tmp_path):
    write_run(tmp_path, config_of(), images(12))
    page = page_of(tmp_path)
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(page.all("svg")) >= 4
    assert len(names) == len(set(names))


def test_the_same_folder_gives_the_same_file(tmp_path):
    write_run(tmp_path, config_of(), images(12))
    first = write_report(tmp_path).read_bytes()
    assert write_report(tmp_path).read_bytes() == first


def test_arrays_that_cannot_be_read_are_told_of(tmp_path):
    write_run(tmp_path, config_of(), images(12))
    (tmp_path / "recovered.npz").write_bytes(b"PK\x03\x04 nothing")
    page = page_of(tmp_path)
    assert "recovered.npz cannot be read" in page.text
    assert not pictures(page)


@pytest.mark.parametrize(
    ("text", "words"), [(None, "cannot be read"), ("[]", "no config"), ('{"config": {}}', "no config")]
)
def test_a_folder_that_is_no_runs_is_refused_with_a_sentence(tmp_path, text, words):
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(UserError, match=words):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_report_that_cannot_be_written_costs_a_sentence_and_nothing_else(tmp_path, capsys):
    write_run(tmp_path, config_of(), images(12))
    (tmp_path / "report.html").mkdir()
    report_if_possible(tmp_path)
    said = capsys.readouterr().err
    assert said.startswith("no report: ")
    assert said.count("\n") == 1
    assert load_summary(tmp_path).attack.share_30db == 1


def test_a_table_shows_each_column_beside_a_guess_and_names_what_leaked_in_part(tmp_path):
    config = config_of(data={"name": "breast_cancer", "samples": 40})
    data = load_data(config)
    x = torch.full_like(data.x, torch.nan)
    x[:, 3] = data.x[:, 3]
    x[:, 4] = -data.x[:, 4]
    write_run(tmp_path, config, data, x)
    page = page_of(tmp_path)
    name = data.columns[3].name
    assert ("p", {"class": "state partly"}) in page.elements
    assert f"guess: {name} of worker 0 (100.0% right, guessing" in page.text
    assert "Against `exact` alone: nothing is said of other attacks." in page.text
    assert f"{name} 0 100.0% 0.0% 0.0% " in page.text
    assert f"{data.columns[0].name} 0 0.0% 0.0% 100.0% " in page.text  # unknown, and not wrong
    assert len([one for one in page.all("tr") if one.get("class") == "leaks"]) == 1
