"""Writes harbour.txt: the book of a harbour that never was.

Ships come and go for some weeks, always with the same captain, home port and cargo; when one comes again, what is
written of it stands more than a thousand letters before. So a model that sees the whole page knows how each line goes
on, and one that sees a quarter of it must guess. Run it again and it writes the same bytes.
"""

from pathlib import Path
from random import Random

LINES = 2600
AFLOAT = 10  # ships that are in the book at a time
VISITS = (4, 7)  # how often one comes

draw = Random(1840)
HEADS = "B Br C Cr D Dr F G Gr H J K L M N P Pr R S St T Th Tr V W".split()
HEARTS = "a e i o u ai au ea ei ou".split()
MIDDLES = "l ll m n nd ng r rd rk s ss st t tt v x".split()
ENDS = "a an as el en er eth ia in is on or os um us".split()
CARGOES = "amber barley bricks candles coal copper cork cotton flax glass herring hides hops iron lamps linen malt oak oil oats paper pitch rope rye salt sealskin silk slate soap tallow tar tea timber tin wax wheat wine wool".split()
UNITS = "bales barrels bundles carts casks chests crates loads sacks tons".split()
WINDS = "north north-east east south-east south south-west west north-west".split()
SKIES = "clear cloudy fog frost hail rain snow sun thunder".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def name(used=set()):
    while True:
        word = draw.choice(HEADS) + draw.choice(HEARTS) + draw.choice(MIDDLES) + draw.choice(ENDS)
        if word not in used:
            used.add(word)
            return word


def ship():
    return {
        "name": name(),
        "captain": f"{name()} {name()}",
        "port": name(),
        "cargo": f"{draw.randint(11, 99)} {draw.choice(UNITS)} of {draw.choice(CARGOES)}",
        "visits": draw.randint(*VISITS),
    }


def visit(ship):
    ship["visits"] -= 1
    return f"The {ship['name']} of {ship['port']}, Captain {ship['captain']}, with {ship['cargo']}."


def book():
    lines, afloat, waiting = [], [], []
    day, month, weekday = 1, 0, 0
    while len(lines) < LINES:
        lines.append(
            f"\n{DAYS[weekday]}, {day} {MONTHS[month]}. Wind {draw.choice(WINDS)}, {draw.choice(SKIES)}."
        )
        for _ in range(draw.randint(2, 4)):
            while len(afloat) + len(waiting) < AFLOAT:
                waiting.append(ship())
            if not waiting:
                waiting, afloat = afloat, []
                draw.shuffle(waiting)
            next_in = waiting.pop()
            lines.append(visit(next_in))
            if next_in["visits"]:
                afloat.append(next_in)
        weekday = (weekday + 1) % 7
        day += 1
        if day > LENGTHS[month]:
            day, month = 1, (month + 1) % 12
    return "\n".join(lines).lstrip() + "\n"


Path(__file__).with_name("harbour.txt").write_text(book())
