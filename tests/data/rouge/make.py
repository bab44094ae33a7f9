#!/usr/bin/env python3
"""Writes pairs.json and stems.txt beside this file: what rouge_score 0.1.2 and NLTK 3.10 say (pip install rouge_score nltk)."""
import itertools
import json
import pathlib
import random
import re

from nltk.stem.porter import PorterStemmer
from rouge_score import rouge_scorer

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]

# Roots under many endings reach every rule of the stemmer; the project's own documents add words as they are written.
ROOTS = """fl tr pl sk sp hop tan fall hiss fizz fail fil motor plaster agre fe conflat troubl siz cat pon ti caress happ enjo relat condit
ration valen hesit digit conform radic differ vile analog vietnam predic oper feud decis hope call formal sensit sensi triplic
form electr good reviv allow infer airlin gyroscop adjust defens irrit replac depend adopt homolog commun activ angular effect
bowdler prob rat ceas contr roll ge the archae philo sing y toy syzyg xy a be oy aye""".split()
ENDINGS = """s es ies ied eed ed ing y ational tional enci anci izer bli alli entli eli ousli ization ation ator alism iveness fulness
ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful ness al ance ence er ic able ible ant ement ment ent sion tion
ion ou ism ate iti ous ive ize e ll ally fully lly yed ying""".split() + [""]
IRREGULAR = "sky skies dying lying tying news innings inning outings outing cannings canning howe proceed exceed succeed".split()

stemmer = PorterStemmer()
words = set(IRREGULAR) | {root + ending for root, ending in itertools.product(ROOTS, ENDINGS)}
for page in (ROOT / "docs").glob("*.md"):
    words |= set(re.findall(r"[a-z]{4,}", page.read_text().lower()))
chosen = sorted(words)
random.Random(0).shuffle(chosen)
chosen = sorted(set(chosen[:2500]) | set(IRREGULAR))
(HERE / "stems.txt").write_text("".join(f"{word} {stemmer.stem(word)}\n" for word in chosen))

TEXTS = [
    ("Boil the water, then add the noodles.", "Boil water. Add noodles and salt!"),
    ("The cat sat on the mat", "the cat was sitting on the mats"),
    ("the the the cat", "the cat the dog the the"),
    ("", "nothing was predicted"),
    ("something", ""),
    ("...", "!?"),
    ("one", "one"),
    ("Running runners ran; flies die, skies dying", "A runner runs and a fly died in the sky"),
    ("na\u00efve caf\u00e9 2nd 10% o'clock", "naive cafe 2nd of 10 percent, o clock"),
    ("\u0130stanbul \u212aelvin \u00c9cole", "istanbul kelvin ecole"),
    ("a b c d e f g", "g f e d c b a"),
    ("summarization of national organizations' relations", "organizing nations summarize a relational organization"),
    ("The cat sat.\nThe dog ran home.", "A dog ran to its home.\nThe cat sat on the mat."),
    ("w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5", "w1 w2 w3 w4 w5"),
    ("\n\na b\n\nb a b\n...\n", "b b a\n\na a b b\n"),
    ("the the\nthe cat the", "the cat\nthe the the\ncat"),
    ("one line, no more", "one line\nno more\nnothing else"),
    ("\n", "\n\n"),
]
# Few words in many lines: many longest common subsequences, of which one counts.
generator = random.Random(1)
for _ in range(12):
    TEXTS.append(tuple("\n".join(" ".join(generator.choice("abcd") for _ in range(generator.randrange(1, 12)))
                                 for _ in range(generator.randrange(1, 5))) for _ in range(2)))
scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
pairs = []
for prediction, reference in TEXTS:
    scores = scorer.score(reference, prediction)
    pairs.append({"prediction": prediction, "reference": reference} | {name: s.fmeasure for name, s in scores.items()})
(HERE / "pairs.json").write_text(json.dumps(pairs, indent=1) + "\n")
