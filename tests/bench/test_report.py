# SPDX-License-Identifier: Apache-2.0
"""The report: every row of the plan, reasons in place of figures, and no ratio of what was measured under other circumstances."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hosttune.bench.chart import Bar, bars
from hosttune.bench.statistics import summary
from hosttune.cli import main
from tests.bench.conftest import Written
from tests.bench.lying_server import Server

TWO_ARMS = {"arms": "{plain: attach, eagle: attach}", "baseline": "plain", "warm_up": "0", "vary": "[args]"}


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Results that were measured already, by their plan."""
    return {"": tmp_path_factory.mktemp("measured")}


@pytest.fixture
def measured(
    once: dict[str, Path], plan_file: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Path]:
    """Measures a plan of two arms against an honest server, once a plan; gives a copy of the results directory."""

    def measure(**lines: str) -> Path:
        plan = plan_file(**{**TWO_ARMS, **lines})
        folder = once.setdefault(plan.read_text(), once[""] / str(len(once)))
        if not folder.exists():
            with Server() as server:
                assert main(["bench", "run", str(plan), "--url", server.url, "--results", str(folder)]) == 0
            capsys.readouterr()
        copied: Path = shutil.copytree(folder, tmp_path / "r")
        return copied

    return measure


def report(folder: Path, capsys: pytest.CaptureFixture[str], rc: int = 0) -> tuple[str, str]:
    """(Markdown, HTML)."""
    page = folder.parent / "page.html"
    assert main(["bench", "report", str(folder), "--html", str(page)]) == rc
    return capsys.readouterr().out, page.read_text(encoding="utf-8")


def edit(folder: Path, key: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / (key + ".json")
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))


def make_invalid(result: dict[str, Any]) -> None:
    del result["figures"]
    text = "the connection was lost: <b>reset | by peer</b>"
    result.update(status="invalid", reasons=[{"code": "reset", "finding": "HT801", "text": text}])


class Page(HTMLParser):
    """Checks that each element is closed in order, and gathers what a reader and a browser would take from the page."""

    VOID = ("meta", "line", "rect", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_equal_circumstances_are_compared(measured: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    text, html = report(measured(), capsys)
    assert "All 2 configurations are valid." in text and "All 2 configurations are valid." in html
    assert "## eagle against plain" in text and "Not compared" not in text
    ratio = re.search(r"\| fib \| 48 \| 2 \| .* ± .* \| .* ± .* \| (\d\.\d\d \(\d.* to \d.*\)) \|", text)
    assert ratio and ratio[1] in html


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r["host"]["stable"].update({"numa-balancing now": "1"}), "host: numa-balancing now is"),
        (lambda r: r["host"]["stable"].update({"kernel": "6.14"}), "and 6.14 for eagle"),
        (lambda r: r["target"]["engine"].update(tp="4"), "engine: tp is not told for plain and 4 for eagle"),
        (lambda r: r["target"].update(model="other"), "model is honest for plain and other for eagle"),
        (lambda r: r["figures"].update(prompt_tokens=[31000]), "length of prompt fib is 10 tokens for plain and 31000"),
    ],
)
def test_arms_of_other_circumstances_are_not_compared(
    change: Callable[[dict[str, Any]], object],
    said: str,
    measured: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = measured()
    edit(folder, "eagle_fib_t48_c2", change)
    text, html = report(folder, capsys)
    section = text.partition("## eagle against plain")[2].partition("\n## ")[0]
    assert "Not compared, because the circumstances differ" in section and said in section
    assert "| fib |" not in section, "no ratio beside the refusal"
    assert said in html


def test_what_the_plan_varies_may_differ(measured: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured()
    edit(folder, "eagle_fib_t48_c2", lambda r: r["target"]["engine"].update(args="--speculative-algorithm EAGLE3"))
    text, _ = report(folder, capsys)
    assert "Not compared" not in text and "do not compare" not in text
    assert "Arms differ in what the plan varies: args." in text


def test_one_trial_supports_no_ratio(measured: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    text, html = report(measured(trials="1"), capsys)
    assert (
        "no claim from one trial" in text
        and "no claim from one trial" in html
        and "(n=1)" in text
        and "±" not in text.split("Mean")[0]
    )


def test_what_is_invalid_or_missing_is_shown_as_that(
    measured: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = measured(concurrency="[1, 2]")
    edit(folder, "eagle_fib_t48_c1", make_invalid)
    (folder / "eagle_fib_t48_c2.json").unlink()
    text, html = report(folder, capsys, rc=1)
    assert "4 configurations: 2 valid, 1 invalid, 1 not measured." in text and "1 invalid, 1 not measured" in html
    rows = [line for line in text.splitlines() if line.startswith("| eagle")]
    assert [row.rstrip(" |").rsplit("| ", 1)[1] for row in rows] == ["invalid", "not measured"]
    assert all(row.count("–") == 3 and "±" not in row for row in rows)
    assert "HT801 the connection was lost" in text and "&lt;b&gt;reset" in html
    assert "2 configurations have no valid result on both sides" in text
    page = Page(html)
    assert page.links == [], "the page loads nothing"
    assert page.seen.count("svg") == 4


def test_the_page_is_whole_and_carries_its_data(
    measured: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = measured()
    _, html = report(folder, capsys)
    page = Page(html)
    assert page.links == [] and "http://" not in re.sub(r'"url": "http://127[^"]*"', "", html) and "@import" not in html
    embedded = re.search(r'<script type="application/json" id="results">(.*?)</script>', html, re.DOTALL)
    assert embedded
    data = json.loads(embedded[1])
    assert [r["key"] for r in data["results"]] == ["plain_fib_t48_c2", "eagle_fib_t48_c2"]
    figures = json.loads((folder / "plain_fib_t48_c2.json").read_text())["figures"]
    assert data["results"][0]["figures"] == figures
    assert "prefers-color-scheme: dark" in html


def test_text_of_a_plan_cannot_become_markup(measured: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured(prompts="{fib: '</script><script>alert(1)</script>'}")
    _, html = report(folder, capsys)
    assert Page(html).seen.count("script") == 1


def test_a_directory_without_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "report", str(tmp_path)]) == 2
    assert "there are no results here" in capsys.readouterr().err


def test_bars_begin_at_zero_and_nothing_stands_for_an_invalid_one() -> None:
    svg = bars([Bar("a", summary([90.0, 110.0])), Bar("b", summary([50.0])), Bar("<c>", None, "invalid")], "tokens/s")
    widths = [float(w) for w in re.findall(r'class="bar" x="250" y="[^"]+" width="([^"]+)"', svg)]
    assert len(widths) == 2 and widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    assert svg.count('class="spread"') == 3 and "&lt;c&gt;" in svg and ">invalid<" in svg
    assert ">0</text>" in svg


def test_a_chart_of_nothing_is_no_error() -> None:
    assert "not measured" in bars([Bar("a", None, "not measured")], "tokens/s")
