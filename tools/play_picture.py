"""Draw `docs/play.png`, the page to play with, in Chromium: `python -m tools.play_picture`, after `make page`."""

from page.browser import play
from page.build import OUT, PAGE

DRAWS = 10_000


def main() -> None:
    """Let the page draw for a while, and take its picture."""
    picture = PAGE.parent / "docs" / "play.png"
    shot = {"width": 1120, "height": 1046, "draws": DRAWS, "full": False, "file": str(picture)}
    found = play(OUT / "index.html", [shot])
    print(found["found"][0]["verdict"], *found["errors"], sep="\n")


if __name__ == "__main__":
    main()
