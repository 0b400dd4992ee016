"""Writes harbour.txt: the book of a harbour that never was.

Every entry says at which quay each of eight ships lies. Most stay where they are, so a reader who sees the entry before
knows most of the next. One in three is followed by the same report of a storm, and then the entry before is more than 300
letters back. One rank of eight holds 210 of a sequence of 1680: to see it, attention has to reach across ranks.
Run again, this writes the same bytes.
"""

from pathlib import Path
from random import Random

ENTRIES = 5000
LEAVES = 1 / 8  # how likely a ship is at another quay next time
STORMS = 1 / 3

SHIPS = "Anna Berta Clara Dora Edda Flora Greta Hilda".split()
QUAYS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WINDS = "north east south west".split()
STORM = (
    "The harbour was closed by a storm for three days, and the master of the harbour wrote that no boat could leave and none "
    "could come in. The bells were rung at every hour of the night, and a fire was kept on the mole for those at sea.\n"
)


def book(draw: Random):
    quays = [draw.choice(QUAYS) for _ in SHIPS]
    for _ in range(ENTRIES):
        storm = draw.random() < STORMS
        where = ", ".join(f"{ship} {quay}" for ship, quay in zip(SHIPS, quays))
        yield f"Wind {draw.choice(WINDS)}. {where}.\n" + STORM * storm
        quays = [draw.choice(QUAYS) if draw.random() < LEAVES else quay for quay in quays]


Path(__file__).with_name("harbour.txt").write_text("".join(book(Random(1840))))
