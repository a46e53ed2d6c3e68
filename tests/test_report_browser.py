"""The HTML report in a real browser: it shows, and its policy blocks nothing and lets nothing through."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from quantscope.cli import main
from report_checkpoints import write_liar

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def browse(page: Path, profile: Path) -> tuple[str, str]:
    """The page's tree after it has loaded, and what the browser logged about it."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no headless Chromium is installed")
    done = subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--v=0",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_page_shows_in_a_browser_and_keeps_its_policy(tmp_path: Path) -> None:
    hostile = 'model.layers.0.<img src=x onerror="document.title=1">`[x](javascript:1)'
    write_liar(tmp_path / "c", (hostile,))
    page = tmp_path / "report.html"
    assert main.run(["report", str(tmp_path / "c"), "-o", str(page)]) == 0
    tree, log = browse(page, tmp_path / "profile")
    assert "CONTRADICTS" in tree
    assert re.search(r"<rect[^>]*class=\"b\"", tree)
    assert "<img" not in tree
    assert "<title>quantscope:" in tree
    assert "Content Security Policy" not in log.replace("Content-Security-Policy", "")


def test_the_policy_stops_what_a_page_must_not_do(tmp_path: Path) -> None:
    """The same policy refuses a script and a style that somebody adds: the test above can fail."""
    write_liar(tmp_path / "c")
    page = tmp_path / "report.html"
    assert main.run(["report", str(tmp_path / "c"), "-o", str(page)]) == 0
    added = '<script>document.title="ran"</script><style>body{color:red}</style></body>'
    page.write_text(page.read_text().replace("</body>", added))
    tree, log = browse(page, tmp_path / "profile")
    assert "<title>ran" not in tree
    assert "Content Security Policy" in log
