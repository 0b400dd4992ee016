"""Writes harbour.txt: the book of a harbour that never was.

Every day has a line that says at which quay each of eight ships lies. Most stay where they are, so a reader who sees the
line of the day before knows most of today's. On every third day something happened that is told in between, and then that
line is more than 210 letters back, which is what one rank of eight holds of a sequence of 1680: to see it, attention has
to reach across ranks. Run again, it writes the same bytes.
"""

from pathlib import Path
from random import Random

DAYS = 5000
STAYS = 7 / 8  # how likely a ship is where it was
TOLD = 1 / 3  # how likely something happened

SHIPS = "Ada Babs Clem Dot Eve Flo Gwen Hal".split()
QUAYS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WINDS = "north east south west".split()
EVENTS = [
    "A gale from the west closed the harbour. No boat left, none came in, and a fire was kept on the mole all night for "
    "those who were still at sea.",
    "Fog lay on the water from morning to evening. The bell was rung every hour, and the pilots sat in the tavern and told "
    "each other of older fogs.",
    "The herring fleet came home with full holds. Every cart in town was on the quays, the scales did not rest, and the cats "
    "slept where they had eaten.",
]


def book(draw: Random):
    quays = [draw.choice(QUAYS) for _ in SHIPS]
    for _ in range(DAYS):
        where = ", ".join(f"{ship} {quay}" for ship, quay in zip(SHIPS, quays))
        yield f"Wind {draw.choice(WINDS)}. {where}.\n"
        if draw.random() < TOLD:
            yield draw.choice(EVENTS) + "\n"
        quays = [quay if draw.random() < STAYS else draw.choice(QUAYS) for quay in quays]


Path(__file__).with_name("harbour.txt").write_text("".join(book(Random(1840))))
