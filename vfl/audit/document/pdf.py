"""audit.pdf: the audit's document on paper, by fpdf2, with the letters of matplotlib's DejaVu fonts."""

from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.audit.document import WHY, chapters
from vfl.audit.document.parts import LABELS, Block, Chapter, Entry, Facts, Grid, Words
from vfl.audit.schema import Audit
from vfl.errors import UserError
from vfl.files import write_atomically

if TYPE_CHECKING:
    from fpdf import FPDF

FILE = "audit.pdf"
MISSING = "audit.pdf is not written: it takes fpdf2 (pip install 'cafe-vfl[audit]')"
INK, MUTED, LINE, RED = (20, 24, 31), (86, 96, 112), (223, 228, 234), (179, 38, 30)
PAPER = (255, 255, 255)
COLOURS = {"leaked": (253, 236, 234), "partly": (253, 241, 220), "guess": (228, 244, 234), "open": (244, 246, 248)}
BANNERS = {"leaked": RED, "partly": (180, 84, 10), "guess": (23, 102, 58), "open": MUTED}


def write_pdf(folder: Path, audit: Audit) -> Path:
    """Write the document into an audit's folder; UserError with the extra that is missing where fpdf2 is."""
    try:
        import fpdf  # noqa: F401 - heavy, and an extra
    except ImportError:
        raise UserError(MISSING) from None
    sheet = _Sheet(audit)
    path = folder / FILE
    write_atomically(path, lambda target: target.write_bytes(sheet.content()))
    return path


class _Sheet:
    """The pages as they fill up."""

    def __init__(self, audit: Audit) -> None:
        self._pdf = _new_pdf(audit)
        self._why = self._pdf.add_link(page=1)
        """To the chapter on what was not tested."""
        self._cover(audit)
        for chapter in chapters(audit):
            self._chapter(chapter)

    def content(self) -> bytes:
        return bytes(self._pdf.output())

    def _cover(self, audit: Audit) -> None:
        pdf = self._pdf
        self._text(f"cafe audit   {audit.name}", 9, MUTED)
        pdf.ln(2)
        label = LABELS[audit.verdict] if audit.verdict != "guess" else "held against the attacks tried"
        pdf.set_font("sans", "B", 13)
        pdf.set_fill_color(*BANNERS[audit.verdict])
        pdf.set_text_color(255, 255, 255)
        text = f"  {label[:1].upper()}{label[1:]}  "
        pdf.cell(pdf.get_string_width(text) + 4, 9, text, fill=True, new_x="LMARGIN", new_y="NEXT")
        pdf.ln(4)
        self._text(audit.headline, 15, INK, bold=True)
        pdf.ln(2)
        if audit.recommendation.sentence:
            self._text(f"What stops it: {audit.recommendation.sentence}", 10, MUTED)
        if not audit.complete:
            self._text("This audit is not complete: what was not tried, and why, is below.", 10, BANNERS["partly"])

    def _chapter(self, chapter: Chapter) -> None:
        first, *others = chapter.blocks
        if not self._has_room(chapter, _begin(first)):
            self._pdf.add_page()
        self._pdf.start_section(chapter.title)
        if f"#{chapter.key}" == WHY:
            self._pdf.set_link(self._why, y=self._pdf.get_y())
        self._heading(chapter)
        self._block(first)
        for block in others:
            if not self._has_room(None, _begin(block)):
                self._pdf.add_page()
            self._block(block)

    def _has_room(self, chapter: Chapter | None, begin: Block) -> bool:
        """Tell whether a block's beginning, and a heading, fit on the page: no heading is left alone at its end."""
        with self._pdf.offset_rendering() as tried:
            if chapter is not None:
                self._heading(chapter)
            self._block(begin)
        return not tried.page_break_triggered

    def _heading(self, chapter: Chapter) -> None:
        self._pdf.ln(5)
        self._text(chapter.title, 13, INK, bold=True)
        if chapter.lead:
            self._text(chapter.lead, 8.5, MUTED)
        self._pdf.ln(1.5)

    def _block(self, block: Block) -> None:
        if isinstance(block, Words):
            self._words(block)
        elif isinstance(block, Facts):
            self._facts(block)
        else:
            self._grid(block)

    def _words(self, words: Words) -> None:
        for line in words.lines:
            self._text(f"•  {line}" if words.marked else line, 9.5, INK)
            self._pdf.ln(1)

    def _facts(self, facts: Facts) -> None:
        self._grid(
            Grid(("", ""), tuple((Entry(name), Entry(text)) for name, text in facts.pairs), "", (1, 4)), head=False
        )

    def _grid(self, grid: Grid, head: bool = True) -> None:
        from fpdf.enums import TableBordersLayout
        from fpdf.fonts import FontFace

        pdf = self._pdf
        if grid.title:
            self._text(grid.title[:1].upper() + grid.title[1:], 9.5, INK, bold=True)
            pdf.ln(1)
        small = 6.5 if len(grid.head) > 7 else 7.5
        pdf.set_font("sans", "", small)
        pdf.set_text_color(*INK)
        pdf.set_draw_color(*LINE)
        widths = grid.widths or tuple(1.0 for _ in grid.head)
        with pdf.table(
            col_widths=widths,
            line_height=small * 0.52,
            text_align="LEFT",
            first_row_as_headings=head,
            headings_style=FontFace(emphasis="", color=MUTED, size_pt=small, fill_color=PAPER),
            borders_layout=TableBordersLayout.HORIZONTAL_LINES,
            padding=0.8,
        ) as table:
            if head:
                table.row(grid.head)
            for line in grid.lines:
                row = table.row()
                for entry in line:
                    fill = COLOURS.get(entry.state, PAPER)
                    wrong = entry.state == "wrong"
                    style = FontFace(color=RED if wrong else INK, emphasis="U" if wrong else None, fill_color=fill)
                    link = self._why if entry.link == WHY else entry.link or None
                    if entry.picture:
                        picture = BytesIO(b64decode(entry.picture.partition(",")[2]))
                        row.cell(img=picture, img_fill_width=True, style=style)
                    else:
                        row.cell(entry.text, style=style, link=link)
        pdf.ln(3)

    def _text(self, text: str, points: float, colour: tuple[int, int, int], bold: bool = False) -> None:
        pdf = self._pdf
        pdf.set_font("sans", "B" if bold else "", points)
        pdf.set_text_color(*colour)
        pdf.multi_cell(0, points * 0.5, text, align="L", new_x="LMARGIN", new_y="NEXT")


def _begin(block: Block) -> Block:
    """Return what of a block must not be torn from its heading."""
    if isinstance(block, Words):
        return replace(block, lines=block.lines[:1])
    return replace(block, pairs=block.pairs[:1]) if isinstance(block, Facts) else replace(block, lines=block.lines[:2])


def _new_pdf(audit: Audit) -> "FPDF":
    import matplotlib
    from fpdf import FPDF

    class Paper(FPDF):
        def footer(self) -> None:
            """Number the pages."""
            self.set_y(-12)
            self.set_font("sans", "", 7.5)
            self.set_text_color(*MUTED)
            self.cell(0, 5, f"cafe audit   {audit.name}   {audit.created}", align="L")
            self.cell(0, 5, f"{self.page_no()} of {{nb}}", align="R")

    pdf = Paper(format="A4")
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    pdf.add_font("sans", "", str(fonts / "DejaVuSans.ttf"))
    pdf.add_font("sans", "B", str(fonts / "DejaVuSans-Bold.ttf"))
    pdf.set_title(f"{audit.name}: an audit")
    pdf.set_creator("cafe-vfl")
    pdf.set_margins(16, 16)
    pdf.set_auto_page_break(True, 18)
    pdf.add_page()
    return pdf
