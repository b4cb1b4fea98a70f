"""The report: its numbers against hand counts, its page against strict readers, its refusals."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from run_directories import EVALUATOR, row, write_run, write_scoring

from colab_utils.analysis import analyse
from colab_utils.errors import ReportError
from colab_utils.report import Report, make_report

# 10 complete samples: EN passes 8, KO 5, MIX1 6, MIX2 4, MIX3 2
SAMPLES = {
    "code/0": ("code", row("ppppp")),
    "code/1": ("code", row("pppww")),
    "code/2": ("code", row("pwpww")),
    "code/3": ("code", row("wwwwe")),
    "sql/0": ("sql", row("ppppp")),
    "sql/1": ("sql", row("ppptn")),
    "sql/2": ("sql", row("pwwpw")),
    "fin/0": ("finance", row("pppuw")),
    "fin/1": ("finance", row("pwwpw")),
    "fin/2": ("finance", row("wwwww")),
    "fin/3": ("finance", row("pprpp")),
    "fin/4": ("finance", row("fffff")),
}
VOID = {"meta", "link", "br", "img", "hr", "input"}


class StrictReader(HTMLParser):
    """Fails on unbalanced tags and doubled ids; collects text, links and what would be fetched."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                assert value not in self.ids, f"id {value} stands twice"
                self.ids.append(value or "")
            if name in ("href", "xlink:href"):
                self.links.append(value or "")
            if name in ("src", "srcset", "data", "action", "background", "poster"):
                self.fetched.append(value or "")
            assert not name.startswith("on"), f"{tag} runs {name}"
        assert tag not in ("script", "iframe", "object", "embed", "link", "base")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def read_page(report: Report) -> StrictReader:
    reader = StrictReader()
    reader.feed(report.html.read_bytes().decode("utf-8"))
    reader.close()
    assert reader.open == []
    return reader


def words(reader: StrictReader) -> str:
    return " ".join(" ".join(reader.text).split())


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return make_report(write_run(tmp_path / "run", SAMPLES))


def test_files_lie_in_the_run_directory(report: Report, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert report.html == run / "report" / "report.html"
    assert report.database == run / "results.sqlite"
    assert sorted(p.name for p in (run / "report").iterdir()) == [
        "accuracy.csv", "contrasts.csv", "figure.png", "figure.svg", "outcomes.csv",
        "report.html", "responses_with_verdicts.csv",
    ]  # fmt: skip
    assert report.figure_png.read_bytes().startswith(b"\x89PNG")


def test_the_page_stands_alone(report: Report) -> None:
    reader = read_page(report)
    assert reader.fetched == []
    assert all(link.startswith("#") for link in reader.links)
    assert {link[1:] for link in reader.links} <= set(reader.ids)
    page = report.html.read_text(encoding="utf-8")
    assert "://" not in page
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\((.*?)\)", page))


def test_the_page_has_contents_a_language_and_a_described_figure(report: Report) -> None:
    page = report.html.read_text(encoding="utf-8")
    assert '<html lang="en">' in page and '<nav aria-label="Contents">' in page
    label = re.search(r'<svg role="img" aria-label="([^"]*)"', page)
    assert label is not None
    assert "EN 80.0 %, KO 50.0 %, MIX1 60.0 %, MIX2 40.0 %, MIX3 20.0 %" in label[1]


def test_accuracy_is_the_hand_count(report: Report) -> None:
    found = {
        (r["task"], r["condition"]): (int(r["n"]), int(r["passed"]))
        for r in read_csv(report.csv["accuracy"])
    }
    assert [found["all", c] for c in ("EN", "KO", "MIX1", "MIX2", "MIX3")] == [
        (10, 8), (10, 5), (10, 6), (10, 4), (10, 2)
    ]  # fmt: skip
    assert found["code", "MIX1"] == (4, 3)
    assert found["sql", "MIX2"] == (3, 2)
    assert found["finance", "MIX1"] == (3, 1)


def test_contrasts_are_the_hand_count(report: Report) -> None:
    rows = {(r["task"], r["name"]): r for r in read_csv(report.csv["contrasts"])}
    ko_en = rows["all", "KO - EN"]
    assert [ko_en[k] for k in ("n", "both", "only_condition", "only_base", "neither")] == [
        "10", "5", "0", "3", "2"
    ]  # fmt: skip
    assert float(ko_en["difference"]) == pytest.approx(-0.3)
    assert float(ko_en["p_value"]) == pytest.approx(0.25)
    # MIX3 - KO: 3 to 0 as well (p .25), MIX1 - KO 1 to 0 (p 1), MIX2 - KO 2 to 3 (p 1)
    names = ("MIX1 - KO", "MIX2 - KO", "MIX3 - KO")
    assert [float(rows["all", name]["p_value"]) for name in names] == [1.0, 1.0, 0.25]
    assert float(ko_en["p_holm"]) == 1.0
    assert rows["all", "MIX3 - EN"]["p_holm"] == "", "secondary contrasts are not in the family"
    assert rows["code", "KO - EN"]["p_holm"] == "", "rows by task are not in the family"
    # both - first - second + base = (2 - 6 - 4 + 5) / 10
    assert float(rows["all", "interaction"]["difference"]) == pytest.approx(-0.3)


def test_outcomes_show_rejected_and_left_out(report: Report) -> None:
    rows = {(r["task"], r["condition"]): r for r in read_csv(report.csv["outcomes"])}
    assert rows["all", "MIX1"]["rejected"] == "1"
    assert rows["all", "MIX1"]["responses"] == "12"
    assert rows["sql", "MIX3"]["no_answer"] == "1"
    assert rows["finance", "MIX2"]["unsafe"] == "1"
    assert rows["finance", "EN"]["reference_error"] == "1"
    text = words(read_page(report))
    assert (
        "10 of them are complete and enter the comparisons (left out: 1 because a request was "
        "rejected; 1 because the reference solution fails)" in text
    )
    assert "fin/3/MIX1 too long" in text


def test_the_summary_claims_nothing_that_ten_samples_cannot_show(report: Report) -> None:
    text = words(read_page(report))
    assert "None of the 4 primary contrasts differs from zero at alpha = 0.05" in text
    assert "no evidence that there is no difference" in text
    assert "this run is too small to show one" in text


def test_a_clear_difference_is_named_with_its_size(tmp_path: Path) -> None:
    samples = {f"s{i}": ("code", row("pwwww" if i < 90 else "ppppp")) for i in range(300)}
    text = words(read_page(make_report(write_run(tmp_path / "run", samples))))
    assert "1 of 4 primary contrasts differ from zero after Holm's correction" in text
    assert "KO - EN by −30.0 points" in text and "adjusted p < 0.001" in text
    assert re.search(r"a true difference of 6\.\d points with 80 % power", text)


def test_the_header_says_what_was_run(tmp_path: Path) -> None:
    cells = row("ppppp") | {"KO": {"outcome": "passed", "finish_reason": "length"}}
    folder = write_run(
        tmp_path / "run",
        {"s": ("code", cells), "bad": ("code", row("fffff"))},
        model={"locked": False, "unverified": ["revision"], "licence": "hyperclovax-seed"},
        run={"batch_invariant": False, "gpu": None},
        warnings=["answers depend on batching here"],
        require_smoke=False,
    )
    write_scoring(folder, {"s": ("code", cells), "bad": ("code", row("fffff"))}, excluded=["bad"],
                  sandbox={"level": "weak", "what": "rlimits"})  # fmt: skip
    text = words(read_page(make_report(folder)))
    for part in (
        "example/tiny (tiny-1)",
        "1" * 40 + ", NOT locked; not verified: revision",
        "hyperclovax-seed",
        "vllm 0.33.0, torch 2.14.0, transformers 5.15.0",
        "no GPU; Linux x86_64, 8 CPUs; 1 segment",
        "10 responses, 0 rejected, 1 cut by length",
        "no: another batching can change some answers",
        EVALUATOR,
        "weak: rlimits",
        "Excluded samples bad",
        "answers depend on batching here",
        "Smoke gate overridden",
    ):
        assert part in text, part


def test_passed_leads_and_differences_by_condition_are_counted(tmp_path: Path) -> None:
    upstream = {"outcome": "passed", "passed_upstream": False, "detail": "a ```py fence"}
    samples = {
        "a": ("code", row("ppppp") | {"KO": upstream, "MIX1": upstream}),
        "b": ("code", row("ppppp") | {"KO": upstream}),
    }
    report = make_report(write_run(tmp_path / "run", samples))
    cell = {r["condition"]: r for r in read_csv(report.csv["accuracy"]) if r["task"] == "all"}
    assert (cell["KO"]["passed"], cell["KO"]["passed_upstream"]) == ("2", "0")
    text = words(read_page(report))
    assert "another verdict for 3 of 10 judged responses (KO 2, MIX1 1)" in text
    assert "EN: 0, KO: 2, MIX1: 1, MIX2: 0, MIX3: 0." in text
    assert "a ```py fence" in text


def test_language_and_length_of_the_answers(tmp_path: Path) -> None:
    cells = row("ppppp") | {
        "KO": {"outcome": "passed", "text": "답ab", "output_token_ids": [1, 2, 3, 4]},
        "MIX1": {"outcome": "passed", "text": "123"},
    }
    report = make_report(write_run(tmp_path / "run", {"s": ("code", cells)}))
    rows = {r["condition"]: r for r in read_csv(report.csv["outcomes"]) if r["task"] == "code"}
    assert float(rows["KO"]["hangul_share_mean"]) == pytest.approx(1 / 3)
    assert rows["MIX1"]["hangul_share_mean"] == "", "an answer without letters has no share"
    assert float(rows["EN"]["hangul_share_mean"]) == 0
    assert (rows["KO"]["output_tokens_median"], rows["KO"]["characters_median"]) == ("4", "3")


HOSTILE = "<script>alert(1)</script>&\"' $x_1$ {{ 7*7 }}\x00\ud800\u202e한글"


def test_hostile_text_is_shown_never_run(tmp_path: Path) -> None:
    cells = row("ppppp") | {
        "KO": {"outcome": "passed", "passed_upstream": False, "text": HOSTILE,
               "detail": HOSTILE, "extracted": HOSTILE},
        "MIX1": {"outcome": "rejected", "error": HOSTILE},
    }  # fmt: skip
    whole = {"s": ("code", cells), "t": ("code", row("ppppp"))}
    contrasts = [
        {"name": HOSTILE, "condition": "KO", "base": "EN", "family": "primary"},
        {"name": "$x_1$ - $y", "condition": "MIX2", "base": "EN", "family": "primary"},
        {"name": "x" * 300, "condition": "MIX1", "base": "EN", "family": "primary"},
    ]
    report = make_report(
        write_run(
            tmp_path / "run", whole, warnings=[HOSTILE],
            model={"licence": HOSTILE}, experiment={"contrasts": contrasts},
        )
    )  # fmt: skip
    text = words(read_page(report))
    assert text.count("<script>alert(1)</script>") >= 5
    assert "{{ 7*7 }}" in text and "49" not in text.replace("49.0", "")
    page = report.html.read_text(encoding="utf-8")
    assert "\x00" not in page and "\u202e" not in page
    drawn = ElementTree.fromstring(report.figure_svg.read_bytes())
    assert "$x_1$ - $y" in [text.strip() for text in drawn.itertext()]


def test_csv_of_responses_keeps_odd_text(tmp_path: Path) -> None:
    odd = 'a\r\nb,"c"\u2028\nd'
    cells = row("ppppp") | {
        "EN": {"outcome": "passed", "text": odd},
        "KO": {"outcome": "passed", "text": HOSTILE},
    }
    report = make_report(write_run(tmp_path / "run", {"s": ("code", cells)}))
    rows = {r["condition"]: r for r in read_csv(report.csv["responses"])}
    assert rows["EN"]["text"] == odd and rows["EN"]["escaped"] == ""
    assert rows["KO"]["escaped"] == "text" and json.loads(rows["KO"]["text"]) == HOSTILE


@pytest.mark.parametrize(
    "samples",
    [
        {f"s{i}": ("code", row("ppppp")) for i in range(3)},
        {f"s{i}": ("sql", row("wwwww")) for i in range(3)},
        {f"s{i}": ("finance", row("rrrrr")) for i in range(3)},
        {f"s{i}": ("code", row("p")) for i in range(3)},
        {"s": ("code", row("-----"))},
        {"whole": ("code", row("ppppp")), "never": ("sql", row("fffff"))},
    ],
    ids=["all passed", "all failed", "all rejected", "one condition", "none judged", "empty task"],
)
def test_edges_still_make_a_page(tmp_path: Path, samples: Any) -> None:
    report = make_report(write_run(tmp_path / "run", samples))
    text = words(read_page(report))
    assert "nan" not in text.lower().split() and "None," not in text
    ElementTree.fromstring(report.figure_svg.read_bytes())


def test_nothing_complete_gives_no_accuracy(tmp_path: Path) -> None:
    report = make_report(write_run(tmp_path / "run", {"s": ("code", row("ppppr"))}))
    assert "No sample is complete, so no accuracy can be given" in words(read_page(report))
    assert {r["accuracy"] for r in read_csv(report.csv["accuracy"])} == {""}


def test_one_condition_has_no_contrasts_to_compute(tmp_path: Path) -> None:
    report = make_report(write_run(tmp_path / "run", {"s": ("code", row("p"))}))
    assert {r["n"] for r in read_csv(report.csv["contrasts"])} == {"0"}


def test_an_experiment_without_contrasts_has_accuracies_only(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SAMPLES, experiment={"contrasts": []})
    report = make_report(folder)
    assert "the experiment declares no contrasts" in words(read_page(report))
    header, *rows = report.csv["contrasts"].read_text(encoding="utf-8").splitlines()
    assert header.startswith("run_id,model,task,name")
    assert [row.split(",")[3] for row in rows] == ["interaction"]


def test_python_and_sql_agree_on_who_is_complete(report: Report) -> None:
    analysis = analyse(report.database)[0]
    with sqlite3.connect(report.database) as connection:
        rows = connection.execute("SELECT sample_id, left_out FROM paired").fetchall()
    assert analysis.complete == sum(reason is None for _, reason in rows)
    assert {s: r for r, names in analysis.left_out.items() for s in names} == {
        sample: reason for sample, reason in rows if reason
    }


def joint(tmp_path: Path, **fields: Any) -> list[Path]:
    harder = {name: (task, cells) for name, (task, cells) in SAMPLES.items()}
    harder["code/0"] = ("code", row("pwwww"))
    return [
        write_run(tmp_path / "one", SAMPLES),
        write_run(tmp_path / "two", harder, model={"name": "tiny-2"}, **fields),
    ]


def test_models_side_by_side_share_one_family(tmp_path: Path) -> None:
    folders = joint(tmp_path)
    report = make_report(folders, target=tmp_path / "both")
    assert report.database == tmp_path / "both" / "results.sqlite"
    text = words(read_page(report))
    assert "Holm over the 8 primary contrasts over all tasks of all models" in text
    assert "Condition tiny-1 (n = 10) tiny-2 (n = 10) EN 80.0 % 80.0 %" in text
    assert len({r["run_id"] for r in read_csv(report.csv["accuracy"])}) == 2
    with pytest.raises(ReportError, match="target"):
        make_report(folders)


def test_models_are_compared_under_one_evaluator_only(tmp_path: Path) -> None:
    one, two = joint(tmp_path)
    write_scoring(two, SAMPLES, fingerprint="b" * 64, completed="2026-12-02T00:00:00+00:00")
    with pytest.raises(ReportError, match=r"different evaluators.*two by bbbbbbbbbbbb") as error:
        make_report([one, two], target=tmp_path / "both")
    assert error.value.mend == f"name the scoring they share: {EVALUATOR[:12]}"
    make_report([one, two], target=tmp_path / "both", scoring_fingerprint=EVALUATOR[:12])


def test_other_contrasts_are_not_joined(tmp_path: Path) -> None:
    folders = joint(tmp_path, experiment={"alpha": 0.01})
    with pytest.raises(ReportError, match="different contrasts or alpha"):
        make_report(folders, target=tmp_path / "both")


def test_smoke_is_not_a_score(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SAMPLES, kind="smoke")
    with pytest.raises(ReportError, match="smoke is not a score"):
        make_report(folder)
    assert not (folder / "results.sqlite").exists()
    report = make_report(folder, allow_smoke=True)
    assert "Smoke run: not a score." in words(read_page(report))


def test_an_unscored_run_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SAMPLES, scored=False)
    with pytest.raises(ReportError, match="no completed scoring"):
        make_report(folder)
    assert not (folder / "report").exists()


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SAMPLES)
    first = make_report(folder).html.read_bytes()
    assert make_report(folder).html.read_bytes() == first
