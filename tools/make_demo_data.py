#!/usr/bin/env python3
"""Writes the demo's data sets, always the same ones; the text comes from the lexicons below and is CC0.

    tools/make_demo_data.py [FOLDER]        (default: examples/demo)

chats/*.jsonl       prompt and completion of a chat: a sentence, and its sentiment in a fixed form; 1200 rows to train with and 60
                    others, as many of each answer, to ask before and after.

and in data/, for the small T5:

Sentences_demo.txt  sentence@label, ISO-8859-1: positive, neutral, negative about 30 : 45 : 25, as FinancialPhraseBank.
                    The label follows from what moved (profit or loss), the way it moved, and the relation between them:
                    "loss narrowed" is positive, "costs rose" negative; words like "rose" alone do not decide.
reading_demo.csv    text,label: what the demo's small model learns first, with all its weights: what a figure is and where it went
                    (income: richer, poorer, steady; burdens: dearer, cheaper, level; others: more, fewer, same; event: no
                    figure), and whether a plain, not financial, sentence is positive, neutral or negative. No sentence of
                    it is in the first file.
"""

import csv
import json
import random
import sys
from pathlib import Path

FIRST = "Nord Alpha Kivi Baltic Sund Vester Iron Lumen Tamm Oresk Havel Polar Merid Aster Cinder Drift Ember Fjord Grano Helio".split()
SECOND = "tech steel foods paper lines power bank media pharma wood cables motors retail optics tools".split()
FORM = ["Oyj", "Plc", "AB", "Group", "Corp", "Ltd", "ASA"]

GOOD = ["net profit", "operating profit", "pretax profit", "net sales", "turnover", "order intake", "the order book", "earnings per share",
        "cash flow", "market share", "the profit margin", "the dividend", "customer satisfaction", "sales in Finland", "demand for its products"]
BAD = ["the net loss", "the operating loss", "net debt", "staff turnover", "delivery delays", "credit losses", "the number of complaints",
       "raw material costs", "the pretax loss", "unpaid invoices", "restructuring costs", "interest expenses", "customer churn", "idle capacity"]
PLAIN = ["the number of shares", "the number of offices", "the length of the contract", "the share of women on the board", "the delivery time window",
         "the annual report's page count", "the number of product names", "the size of the board", "the notice period", "the subscription period"]

UP = ["rose", "increased", "grew", "climbed", "went up", "jumped", "was up", "surged", "widened", "expanded"]
DOWN = ["fell", "decreased", "declined", "dropped", "went down", "slipped", "was down", "shrank", "narrowed", "contracted"]
FLAT = ["was unchanged", "stayed the same", "remained at last year's level", "was flat", "held steady", "did not change"]

PERIOD = ["in the first quarter", "in the second quarter", "in the third quarter", "in the last quarter", "in January-June", "in 2008", "in 2009",
          "during the period", "from a year earlier", "year on year", "in the review period", "since March"]
UNIT = ["EUR {n} mn", "USD {n} million", "SEK {n} mn", "GBP {n} m"]
FACT = ["{c} will build a {thing} in {place}.", "{c} has its head office in {place}.", "{c} employs about {n} people in {place}.",
        "{c} makes {thing}s for customers in {place}.", "The meeting of {c} will be held in {place}.", "{c} will publish its report on {n} May.",
        "{c} and the city of {place} have agreed on a {thing}.", "The {thing} of {c} in {place} will be ready by the end of the year.",
        "The value of the {thing} was not disclosed, {c} said.", "{c} signed a contract on a {thing} in {place}."]
THING = ["factory", "harbour", "warehouse", "data centre", "power plant", "sawmill", "paper machine", "ferry", "software package", "crane", "shop",
         "telecom network", "research unit", "pipeline"]
PLACE = ["Helsinki", "Tampere", "Malmö", "Göteborg", "Riga", "Tallinn", "Århus", "Bergen", "Vilnius", "Lyon", "Köln", "Poznan", "Turku", "Espoo"]

FRAME = ["{c} said {w} {v} {p}.", "{c}: {w} {v} {by} {p}.", "At {c}, {w} {v} {by}.", "{P}, {w} of {c} {v} to {m}.", "{w} of {c} {v} {by} to {m}.",
         "{c} reported that {w} {v} {by} {p}.", "According to {c}, {w} {v} to {m} {p}.", "{c} expects that {w} {v} {p}, it said in {place}.",
         "Its report shows that {w} {v} {p}, {c} said.", "{w} {v} to {m} from {m2}, {c} said {p}."]


MOOD = {
    "positive": "wonderful good excellent pleasant great delightful lovely splendid welcome superb".split(),
    "neutral": "ordinary average usual normal typical plain common standard regular routine".split(),
    "negative": "awful bad terrible unpleasant poor dreadful nasty miserable unwelcome horrible".split(),
}
TOPIC = "the weather, the film, the food, the journey, the music, the hotel, the book, the coffee, the match, the garden, the view, the speech".split(", ")
WHEN = "yesterday, today, last week, on Monday, in the morning, in the evening, this summer, last winter, at the weekend, in 2008".split(", ")
PLAIN_FRAME = ["{t} was {m} {w}.", "{w}, {t} was {m}.", "{t} in {place} was {m} {w}.", "we found {t} {m} {w}.", "{t} in {place} is {m}, they said {w}.",
               "a {m} day in {place} {w}: {t} was {m}."]


READING = {
    "income": {"up": "richer", "down": "poorer", "flat": "steady"},
    "burden": {"up": "dearer", "down": "cheaper", "flat": "level"},
    "other": {"up": "more", "down": "fewer", "flat": "same"},
}


class Writer:
    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.seen: set[str] = set()

    def pick(self, options):
        return self.random.choice(options)

    def company(self) -> str:
        return f"{self.pick(FIRST)}{self.pick(SECOND)} {self.pick(FORM)}"

    def number(self) -> str:
        return f"{self.random.randint(1, 99)}.{self.random.randint(0, 9)}"

    def money(self) -> str:
        return self.pick(UNIT).format(n=self.number())

    def fact(self) -> str:
        return self.pick(FACT).format(c=self.company(), thing=self.pick(THING), place=self.pick(PLACE), n=self.random.randint(2, 29))

    def movement(self, what: str, verb: str) -> str:
        by = f"by {self.random.randint(1, 80)} %" if verb not in FLAT else "again"
        period = self.pick(PERIOD)
        text = self.pick(FRAME).format(c=self.company(), w=what, v=verb, p=period, P=period[0].upper() + period[1:], by=by,
                                       m=self.money(), m2=self.money(), place=self.pick(PLACE))
        return text[0].upper() + text[1:]

    def unique(self, make):
        """The next row of make() whose sentence has not been written yet."""
        while True:
            text, label = make()
            if text not in self.seen:
                self.seen.add(text)
                return text, label


def sentiment(w: Writer, label: str) -> tuple[str, str]:
    if label == "neutral":
        kind = w.random.random()
        if kind < 0.4:
            return w.fact(), label
        if kind < 0.7:
            return w.movement(w.pick(GOOD + BAD), w.pick(FLAT)), label
        return w.movement(w.pick(PLAIN), w.pick(UP + DOWN + FLAT)), label
    good = w.random.random() < 0.5
    up = good == (label == "positive")
    return w.movement(w.pick(GOOD if good else BAD), w.pick(UP if up else DOWN)), label


def reading(w: Writer) -> tuple[str, str]:
    kind = w.random.random()
    if kind < 0.1:
        return w.fact(), "event"
    if kind < 0.35:
        label = w.pick(list(MOOD))
        text = w.pick(PLAIN_FRAME).format(t=w.pick(TOPIC), m=w.pick(MOOD[label]), w=w.pick(WHEN), place=w.pick(PLACE))
        return text[0].upper() + text[1:], label
    names = {"income": GOOD, "burden": BAD, "other": PLAIN}
    verbs = {"up": UP, "down": DOWN, "flat": FLAT}
    what, where = w.pick(list(names)), w.pick(list(verbs))
    return w.movement(w.pick(names[what]), w.pick(verbs[where])), READING[what][where]


def chat(text: str, label: str) -> str:
    prompt = [{"role": "system", "content": "Sentiment for investors?"}, {"role": "user", "content": text}]
    return json.dumps({"prompt": prompt, "completion": [{"role": "assistant", "content": f"sentiment={label}"}]}, ensure_ascii=False)


def write_chats(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    w = Writer(20260202)
    for name, rows in (("train", 1200), ("test", 60)):
        labels = ["positive", "neutral", "negative"] * (rows // 3)
        w.random.shuffle(labels)
        chats = [chat(*w.unique(lambda: sentiment(w, label))) for label in labels]
        (folder / f"{name}.jsonl").write_text("".join(row + "\n" for row in chats), encoding="utf-8")


def main() -> None:
    demo = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "examples/demo")
    write_chats(demo / "chats")
    folder = demo / "data"
    folder.mkdir(parents=True, exist_ok=True)

    w = Writer(20260101)
    labels = ["positive"] * 600 + ["neutral"] * 900 + ["negative"] * 500
    w.random.shuffle(labels)
    rows = [w.unique(lambda: sentiment(w, label)) for label in labels]
    (folder / "Sentences_demo.txt").write_bytes("".join(f"{text}@{label}\n" for text, label in rows).encode("iso-8859-1"))

    with open(folder / "reading_demo.csv", "w", newline="", encoding="utf-8") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["text", "label"])
        out.writerows(w.unique(lambda: reading(w)) for _ in range(6000))


if __name__ == "__main__":
    main()
