"""Writes harbour.txt: the daily list of a harbour that never was.

Every day has a page: the weather, then who lies at which berth. A ship stays for some days, so that most lines of a page
stand on the page before, a little over five hundred letters back: a model that sees that far copies them, one that sees
less has to guess. Run again, it writes the same bytes.
"""

from datetime import date, timedelta
from pathlib import Path
from random import Random

DAYS = 1000
BERTHS = "Abbey Chain Customs Fish Lantern Mill Salt Tar".split()
LEAVES = 1 / 6  # how likely a ship is gone on the next day

draw = Random(1840)
HEADS = "B Br C Cr D Dr F G Gr H J K L M N P Pr R S St T Th Tr V W".split()
HEARTS = "a e i o u ai au ea ei ou".split()
MIDDLES = "l ll m n nd ng r rd rk s ss st t tt v x".split()
ENDS = "a an as el en er eth ia in is on or os um us".split()
CARGOES = "amber barley bricks candles coal copper cork cotton flax glass hemp hides hops iron lamps linen malt oak oats oil paper pitch rope rye salt silk slate soap tar tea timber tin wax wheat wine wool".split()
UNITS = "bales casks carts crates loads sacks tons".split()
WINDS = "north north-east east south-east south south-west west north-west".split()
SKIES = "clear cloudy fog frost hail rain snow sun thunder".split()


def name():
    """Of up to seven letters, so that every line of a page is as long as that of another day."""
    parts = [draw.choice(HEADS), draw.choice(HEARTS), draw.choice(MIDDLES), draw.choice(ENDS)]
    word = "".join(parts)
    return word if len(word) <= 7 else name()


def leader(text, width):
    """`text` and dots up to `width`."""
    return f"{text} ".ljust(width, ".") + " "


def ship():
    cargo = f"{draw.randint(11, 99)} {draw.choice(UNITS)} of {draw.choice(CARGOES)}"
    return leader(f"{name()} of {name()}", 20) + leader(name(), 9) + f"{cargo}".ljust(21, ".")


def page(day, berths):
    weather = f"{draw.choice(WINDS)}, {draw.choice(SKIES)}"
    head = leader(f"{day:%A} {day.day} {day:%B %Y}", 30) + weather.ljust(21, ".")
    lines = [leader(berth, 8) + ship for berth, ship in zip(BERTHS, berths)]
    return "\n".join([head, *lines]) + "\n\n"


def book():
    berths = [ship() for _ in BERTHS]
    day = date(1840, 1, 1)
    for _ in range(DAYS):
        yield page(day, berths)
        berths = [ship() if draw.random() < LEAVES else there for there in berths]
        day += timedelta(days=1)


Path(__file__).with_name("harbour.txt").write_text("".join(book()))
