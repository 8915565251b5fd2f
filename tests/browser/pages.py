"""What a user sees and touches: the panel, the button in the toolbar, and cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from playwright.sync_api import Locator, Page, expect

from tests.browser.jupyter import Jupyter

SCREENSHOTS = Path(__file__).parents[2] / ".artifacts" / "screenshots"
PATIENCE = 30_000
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


class Notebook:
    """A notebook, open in JupyterLab or in Notebook 7."""

    panel_id = "genv-jupyter-panel"
    RUN_ALL = "notebook:run-all-cells"

    def __init__(self, page: Page, jupyter: Jupyter, name: str) -> None:
        self.page = page
        self.jupyter = jupyter
        self.name = name

    def open(self) -> None:
        """Open it, and wait until its kernel is there and known."""
        self.page.goto(self.jupyter.page(self.name))
        expect(self.button).to_be_visible(timeout=2 * PATIENCE)

    @property
    def button(self) -> Locator:
        """Ours in the notebook's toolbar."""
        return self.page.locator(".jp-Genv-toolbarButton:visible")

    @property
    def panel(self) -> Locator:
        return self.page.locator(f"#{self.panel_id}")

    @property
    def notebook(self) -> Locator:
        """The section about this notebook."""
        return self.panel.get_by_role("region", name="This notebook")

    @property
    def refusal(self) -> Locator:
        return self.notebook.get_by_role("alert")

    @property
    def toast(self) -> Locator:
        """What is said in a corner of the window, of our subjects."""
        return self.page.locator(".Toastify__toast").filter(has_text=self.name)

    def show(self) -> None:
        """Open the panel."""
        if not self.panel.is_visible():
            self.command("genv-jupyter:show")
        expect(self.notebook).to_be_visible()

    def device(self, index: int) -> Locator:
        return self.panel.locator(".jp-Genv-device").nth(index)

    def attach(self, label: str) -> None:
        """Click one of the quick choices."""
        self.notebook.get_by_role("button", name=f"Attach {label}").click()

    def attach_form(self, *, memory: str = "", gpus: str = "", device: str = "any") -> None:
        """Fill in the form, which stays open when it was refused, and send it."""
        self.fill_form(memory=memory, gpus=gpus, device=device).click()

    def fill_form(self, *, memory: str = "", gpus: str = "", device: str = "any") -> Locator:
        """Fill in the form; return the button that sends it."""
        other = self.notebook.get_by_role("button", name="Other…")
        if other.get_attribute("aria-expanded") != "true":
            other.click()
        self.notebook.get_by_label("Memory").fill(memory)
        self.notebook.get_by_label("GPUs", exact=True).fill(gpus)
        if device != "any":
            self.notebook.get_by_role("checkbox", name=device).check()
        return self.notebook.get_by_role("button", name="Attach", exact=True)

    def release(self) -> None:
        self.notebook.get_by_role("button", name="Release", exact=True).click()

    def expect_summary(self, text: str) -> None:
        """Wait until the button in the toolbar says so."""
        expect(self.button).to_have_text(text, timeout=PATIENCE)

    def cell(self, cell: int) -> Locator:
        return self.page.locator(".jp-Notebook:visible .jp-CodeCell").nth(cell)

    def run(self, cell: int) -> None:
        """Run a cell and wait until it is done."""
        prompt = self.cell(cell).locator(".jp-InputPrompt")
        before = prompt.inner_text()
        prompt.click()
        self.page.keyboard.press("Control+Enter")
        expect(prompt).not_to_have_text(before)
        self.finished(cell)

    def run_all(self) -> None:
        """Run all cells, and do not wait for them."""
        self.command(self.RUN_ALL)

    def finished(self, cell: int) -> None:
        """Wait until a cell is done."""
        prompt = self.cell(cell).locator(".jp-InputPrompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"), timeout=PATIENCE)

    def expect_idle(self) -> None:
        """Wait until the kernel, perhaps another one now, is ready."""
        self.page.wait_for_function(
            """() => {
              const context = window.jupyterapp.shell.currentWidget.sessionContext;
              return context.session?.kernel?.status === 'idle';
            }"""
        )

    def output(self, cell: int) -> Locator:
        return self.cell(cell).locator(".jp-OutputArea")

    def command(self, name: str, **arguments: object) -> None:
        """Run a command of the application, as a shortcut of the user's would."""
        self.page.evaluate(
            "([name, args]) => void window.jupyterapp.commands.execute(name, args)",
            [name, arguments],
        )

    def resize(self, width: int) -> None:
        """Drag the sidebar to a width."""
        box = self.panel.bounding_box()
        assert box is not None
        self.page.mouse.move(box["x"] - 3, box["y"] + 300)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] - 3 + box["width"] - width, box["y"] + 300, steps=4)
        self.page.mouse.up()

    def theme(self, name: str) -> None:
        """Change to the light or the dark theme."""
        self.command("apputils:change-theme", theme=THEMES[name])
        light = str(name == "light").lower()
        expect(self.page.locator(f"body[data-jp-theme-light={light}]")).to_be_attached()

    def shoot(self, name: str, *, themes: tuple[str, ...] = (), toasts: bool = False) -> None:
        """Keep a picture of the page, as it is or in each of the themes, for people to look at.

        ``toasts``: keep what closes by itself; its time is an animation, that a picture ends.
        """
        if toasts:
            self.page.wait_for_timeout(1000)  # they slide in
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        if not themes:
            animations: Literal["allow", "disabled"] = "allow" if toasts else "disabled"
            self.page.screenshot(path=SCREENSHOTS / f"{name}.png", animations=animations)
        for theme in themes:
            self.theme(theme)
            self.page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png", animations="disabled")
        if "dark" in themes:
            self.theme("light")


class Notebook7(Notebook):
    """The same in Notebook 7, where the panel comes as a popover."""

    panel_id = "genv-jupyter-popover"

    def open(self) -> None:
        self.page.goto(self.jupyter.page(self.name, app="notebooks"))
        expect(self.button).to_be_visible(timeout=2 * PATIENCE)
