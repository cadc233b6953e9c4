"""The page in a real browser, headless: no script error, figures drawn, light, dark, on a phone and on paper.

Chromium is driven by its own command line and, for clicks, by a second page that holds the report in a frame. Set
VITSCALE_SCREENSHOTS to a folder to keep the pictures. Skipped where there is no Chrome or Chromium.
"""

from __future__ import annotations

import html as html_module
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import report_making as make

from vitscale.report import html

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
         "--virtual-time-budget=10000", "--allow-file-access-from-files", "--disable-dev-shm-usage")  # fmt: skip
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chrome or Chromium")

DRIVER = """<!doctype html><body style="margin:0"><iframe id="f" style="width:%dpx;height:%dpx;border:0"></iframe>
<pre id="answer"></pre><script>
const frame = document.getElementById("f");
const tell = (value) => { document.getElementById("answer").textContent = JSON.stringify(value); };
frame.onload = async () => {
  const page = frame.contentDocument, inside = frame.contentWindow;
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  try { await wait(300); tell(await (async () => { %s })()); } catch (error) { tell({ failed: String(error) }); }
};
frame.src = %s;
</script>"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER
    done = subprocess.run([BROWSER, *FLAGS, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What scripts logged: errors, and what the page's policy refused."""
    return re.findall(r"CONSOLE.*", done.stderr)


def drive(page: Path, script: str, width: int = 1280, height: int = 3000) -> dict:
    """Run a script beside the page; what it returns."""
    driver = page.with_name("driver.html")
    driver.write_text(DRIVER % (width, height, script, json.dumps(page.name)), encoding="utf-8")
    done = run("--dump-dom", f"--window-size={max(500, width)},{height}", driver.as_uri())
    assert complaints(done) == []
    found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, flags=re.S)
    assert found, done.stdout[-500:]
    answer = json.loads(html_module.unescape(found[1]))
    assert "failed" not in answer, answer
    return answer


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.render(make.scaling_study()), encoding="utf-8")
    return path


@pytest.fixture
def pictures(tmp_path) -> Path:
    folder = Path(os.environ.get("VITSCALE_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def colour_at_corner(path: Path) -> tuple[int, ...]:
    from PIL import Image

    with Image.open(path) as image:
        return image.convert("RGB").getpixel((2, 2))  # type: ignore[return-value]


def test_light_and_dark_without_a_script_error(page, pictures):
    for name, flags, bright in (("light", (), True), ("dark", ("--force-dark-mode",), False)):
        path = pictures / f"{name}.png"
        done = run(*flags, "--window-size=1280,4800", f"--screenshot={path}", page.as_uri())
        assert complaints(done) == []
        assert (sum(colour_at_corner(path)) > 600) is bright


def test_a_script_error_would_be_seen(page, tmp_path):
    """The check above can fail: a page whose data are cut."""
    text = page.read_text(encoding="utf-8")
    broken = tmp_path / "report.html"
    broken.write_text(text.replace('"panels":', '"pannels":'), encoding="utf-8")
    assert any("TypeError" in line for line in complaints(run("--dump-dom", broken.as_uri())))


def test_a_phone_has_every_figure_and_needs_no_sideways_scrolling(page, pictures):
    answer = drive(page, """
      const wide = [...page.querySelectorAll(".page *")].filter((node) =>
        !node.closest(".scroll") && !node.closest("svg") && node.getBoundingClientRect().right > inside.innerWidth + 1);
      const plots = [...page.querySelectorAll(".plot")];
      return { width: page.documentElement.scrollWidth, inner: inside.innerWidth,
               wide: wide.map((node) => node.className || node.tagName).slice(0, 5), plots: plots.length,
               drawn: plots.filter((plot) => plot.querySelector("svg.main-svg .xaxislayer-above text")).length,
               errors: page.documentElement.dataset.scriptErrors, ready: page.documentElement.dataset.ready };
    """, width=390)  # fmt: skip
    assert answer == {
        "width": 390, "inner": 390, "wide": [], "plots": 10, "drawn": 10, "errors": "0", "ready": "true"
    }  # fmt: skip
    driver = page.with_name("driver.html")
    run("--window-size=500,9000", f"--screenshot={pictures / 'phone.png'}", driver.as_uri())


def test_buttons_do_what_they_say(page):
    answer = drive(page, """
      const click = async (node) => { node.click(); await wait(150); };
      const curves = () => page.querySelectorAll('[data-panel="scaling-speedup"] .scatterlayer .trace').length;
      const key = [...page.querySelectorAll("#figure-scaling .key")].find((node) => node.textContent === "fsdp2");
      const before = curves();
      await click(key);
      const hidden = [key.getAttribute("aria-pressed"), curves() < before];
      await click(key);
      const header = [...page.querySelectorAll(".cases thead button")].find((node) => node.textContent === "images/s");
      const first = () => page.querySelector(".cases tbody tr th").textContent;
      await click(header);
      const slowest = first();
      await click(header);
      const fastest = first(), sorted = header.parentElement.getAttribute("aria-sort");
      const last = page.querySelector(".cases tbody tr:last-child th").textContent;
      const filter = page.getElementById("filter");
      filter.value = "zero 3 8";
      filter.dispatchEvent(new inside.Event("input"));
      const left = [...page.querySelectorAll(".cases tbody tr")].filter((row) => !row.hidden).map((row) =>
        row.cells[0].textContent);
      const back = inside.getComputedStyle(page.body).backgroundColor;
      await click(page.getElementById("theme"));
      const line = page.querySelector('[data-panel="scaling-speedup"] .xtick text').style.fill;
      const choice = page.getElementById("steps-case");
      choice.value = "3";
      choice.dispatchEvent(new inside.Event("change"));
      await wait(100);
      const plots = [...page.querySelectorAll(".plot")];
      const widest = () => Math.max(...plots.map((plot) => plot.querySelector("svg.main-svg").width.baseVal.value));
      const tick = () => page.querySelector('[data-panel="scaling-speedup"] .xtick text').style.fill;
      inside.dispatchEvent(new inside.Event("beforeprint"));
      await wait(200);
      const paper = [widest() <= 690, tick()];
      inside.dispatchEvent(new inside.Event("afterprint"));
      await wait(200);
      const screen = [widest() > 900, tick()];
      return { paper, screen, hidden, again: curves() === before, slowest, fastest, last, sorted, left,
               dark: back !== inside.getComputedStyle(page.body).backgroundColor, line,
               steps: page.getElementById("steps").getAttribute("aria-label") };
    """)  # fmt: skip
    assert answer["hidden"] == ["false", True]
    assert answer["again"] is True
    assert answer["slowest"] == "DeepSpeed ZeRO 3, 1 GPU"
    assert answer["fastest"] == "ddp, 8 GPUs"
    assert answer["last"] == "single, 1 GPU"  # no measurement: last, whichever way
    assert answer["sorted"] == "descending"
    assert "DeepSpeed ZeRO 3, 8 GPUs" in answer["left"]
    assert all("ZeRO 3" in label for label in answer["left"])
    assert answer["dark"] is True
    assert answer["line"] == "rgb(197, 203, 211)"
    assert answer["paper"] == [True, "rgb(61, 68, 80)"]  # light, though the theme is dark
    assert answer["screen"] == [True, "rgb(197, 203, 211)"]
    assert answer["steps"].endswith("of ddp, 8 GPUs")


def test_figures_and_table_can_be_saved(page):
    answer = drive(page, """
      const saved = [];
      inside.HTMLAnchorElement.prototype.click = function () { saved.push([this.download, this.href.slice(0, 22)]); };
      for (const kind of ["svg", "png"]) {
        page.querySelector(`#figure-scaling [data-save="${kind}"]`).click();
        await wait(1500);
      }
      page.querySelector("[data-csv]").click();
      return { saved };
    """)  # fmt: skip
    names = [name for name, _ in answer["saved"]]
    assert names == ["scaling-speedup.svg", "scaling-speedup.png", "cases.csv"]
    assert answer["saved"][0][1].startswith("data:image/svg")
    assert answer["saved"][1][1].startswith("data:image/png")
    assert answer["saved"][2][1].startswith("blob:")


def test_on_paper(page, pictures):
    path = pictures / "print.pdf"
    done = run("--force-dark-mode", f"--print-to-pdf={path}", "--no-pdf-header-footer", page.as_uri())
    assert complaints(done) == []
    pages = len(re.findall(rb"/Type\s*/Page\b", path.read_bytes()))
    assert 4 <= pages <= 14


def test_a_hostile_study_runs_nothing(tmp_path):
    path = tmp_path / "report.html"
    path.write_text(html.render(make.hostile_study()), encoding="utf-8")
    answer = drive(path, """
      for (const plot of page.querySelectorAll(".plot")) {
        inside.Plotly.Fx.hover(plot, [{ curveNumber: 1, pointNumber: 0 }]);
      }
      await wait(300);
      return { hacked: page.documentElement.dataset.hacked ?? null, images: page.querySelectorAll("img").length,
               links: page.querySelectorAll("svg a").length, ready: page.documentElement.dataset.ready };
    """)  # fmt: skip
    assert answer == {"hacked": None, "images": 0, "links": 0, "ready": "true"}
