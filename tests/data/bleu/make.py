#!/usr/bin/env python3
"""Writes corpora.json beside this file: what corpus_bleu of sacrebleu 2.6.0 says (pip install sacrebleu)."""
import json
import pathlib
import random

import sacrebleu

CORPORA = {
    "plain": [("The cat is on the mat.", "The cat sat on the mat."), ("He went home, at last.", "At last he went home.")],
    "one row that is right": [("It was a dark and stormy night.", "It was a dark and stormy night.")],
    "case counts": [("the Cat sat on The mat today", "The cat sat on the mat today")],
    "punctuation": [
        ('"Stop!" (he said); why? {a}[b] <c> x=y/z+1 ~ `q` ^ _ | \\ @home #1 $5 %', "'Stop!' (he said): why? {a}[b] x=y/z+1 ~ @home #1 $5 %"),
        ("don't well-known co-op rock'n'roll...", "don't well known co-op rock 'n' roll ..."),
    ],
    "entities": [("&quot;A &amp; B&quot; &lt;b&gt; &amp;lt; &nbsp;", "\"A & B\" <b> < &nbsp; it is"), ("a&b &amp c", "a & b & c d")],
    "numbers": [
        ("In 1999, 1,234.56 of 3.5 rose .5 to 7. Then 10-20 or 5-a, a-5 and 1,000,000.", "In 1999 , 1,234.56 of 3.5 rose 0.5 to 7 . Then 10 - 20 or 5 - a, a-5, 1,000,000."),
        ("1.2.3,4..5 ., ,. 6,", "1.2.3, 4..5 .,,. 6 ,"),
    ],
    "an empty prediction": [("", "Nothing came out of it."), ("The rest is as it should be.", "The rest is as it should be.")],
    "all predictions empty": [("", "One text."), ("", "Another text.")],
    "an empty reference": [("Something", ""), ("Here are five words now", "Here are five words now")],
    "texts shorter than four words": [("Good morning", "Good morning"), ("Yes", "Yes"), ("No way!", "No way!")],
    "no word is right": [("a b c d e f", "u v w x y z")],
    "no pair is right": [("a x b y c z", "c b a q r s t u")],
    "predictions too short": [("The president of the council said", "The president of the council said that he will not go to the meeting.")],
    "predictions too long": [("The the the the the the the president of the council said so", "The president of the council said so")],
    "beyond ASCII": [
        ("Das schöne Mädchen aß „Brötchen“, gestern – für 3,50 €.", "Das schöne Mädchen aß „Brötchen“ gestern – für 3,50 €."),
        ("Președintele a spus că „nu”. Știi?", "Președintele a spus: „nu”. Știi?"),
        ("日本語の文。これは、テストです。", "日本語の文。これは、テストです。"),
        ("Он сказал: «да», и ушёл.", "Он сказал «да» и ушёл."),
        ("é.é,é. 5é. é5.", "é . é , é. 5é. é5."),
    ],
    "white space": [
        ("a\u00a0b\u3000c\u2009d\x1ce\x85f g\t h \r\n i\u200bj ", "a b c d e f g h i\u200bj"),
        ("a hyphen-\nated line\nends here <skipped> so <ski<skipped>pped> \n", "a hyphenated line ends here so <skipped> it does"),
    ],
}

# Texts of characters that the rules look at, and the same texts with some of them changed.
generator = random.Random(0)
letters = list("aB5" * 3 + ".,-'\"&/( ") + [" ", " ", "é", "„", "&quot;", "&amp;", "&lt;", "\n"]
for name in ("made 1", "made 2", "made 3"):
    rows = []
    for _ in range(20):
        reference = [generator.choice(letters) for _ in range(generator.randrange(10, 60))]
        prediction = [generator.choice(letters) if generator.random() < 0.1 else c for c in reference]
        rows.append(("".join(prediction), "".join(reference)))
    CORPORA[name] = rows

out = []
for name, rows in CORPORA.items():
    predictions, references = [p for p, _ in rows], [r for _, r in rows]
    out.append({"name": name, "predictions": predictions, "references": references,
                "bleu": sacrebleu.corpus_bleu(predictions, [references]).score})
pathlib.Path(__file__).with_name("corpora.json").write_text(json.dumps(out, indent=1) + "\n")
